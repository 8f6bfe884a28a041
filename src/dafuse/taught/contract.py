"""What the product asks of a method that people teach. No torch here.

A taught method is made for a network and has settings. It learns lessons, drops classes, joins with
another of its kind, and gives what is kept of it: arrays, whose names say what they belong to,

    class/...     an entry for each class, in the order of the classes: its record
    shared/...    what all classes share
    predict/...   the classifier over features; it follows from the others, and some methods solve
                  it again where `load` is not given it (`table.Entry.solves_again`)

and a few numbers. Storage, undo, forgetting and the ledger need to know no more than that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dafuse.backbones.backbone import Backbone, Need
from dafuse.errors import DafuseError, did_you_mean
from dafuse.heads.arrays import under
from dafuse.heads.head import Head
from dafuse.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays = dict[str, np.ndarray]
Numbers = dict[str, float]
Encode = Callable[[np.ndarray], np.ndarray]  # squares [B, 3, S, S], 0 to 255 -> features [B, F]
CLASS, SHARED, PREDICT = "class/", "shared/", "predict/"


@dataclass(frozen=True)
class Lesson:
    """Images with the numbers of their classes: known ones first, new ones after them."""

    names: list[str]  # of all classes, known and new
    known: int  # how many were known before
    counts_C: list[int]  # images that each was learned from before this lesson
    images: list[Path | np.ndarray]  # that can be read
    labels_N: np.ndarray
    feats_NF: np.ndarray | None  # None for a method that trains: it reads the images itself
    options: dict[str, Any] = field(default_factory=dict)  # of this lesson alone
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class Tested:
    """Images of the lesson that the method was tried on, and what it took them for."""

    how: str  # in words: "each left out in turn"
    labels_N: np.ndarray
    answers_N: np.ndarray


class Teachable(Protocol):
    """A method as people teach it: made for a network, then `load`ed or taught from nothing."""

    trains: ClassVar[bool]  # reads the images of a lesson itself; others are given features
    needs_torch: ClassVar[bool]
    remains: ClassVar[str]  # what stays of a class that is dropped, in words; "" for nothing

    def __init__(self, eye: Backbone, settings: dict[str, Any], seed: int) -> None: ...

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Every setting: those given, and defaults for the others. Refuses unknown ones."""

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        """What it needs of a network, with these settings."""

    def learn(self, lesson: Lesson) -> Tested:
        """Learn new classes, and more of known ones."""

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes alone, in this order."""

    def merge(self, other: Any, numbers: Sequence[int]) -> None:
        """Add what another was taught; its class i is this one's ``numbers[i]``."""

    def arrays(self) -> Arrays: ...

    def numbers(self) -> Numbers: ...

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        """Become the method that these were taken from."""

    def encoder(self, shared: Arrays) -> Encode:
        """The map from pixels to the features that `Head` takes; given all arrays but records."""

    def graph(self, shared: Arrays) -> "ModelProto":
        """What `encoder` computes, as an ONNX graph whose output is called ``features``."""


def head_of(arrays: Arrays, numbers: Numbers) -> Head:
    """The classifier over features, from the arrays that begin with ``predict/``."""
    return Head.from_arrays(under(PREDICT, arrays), numbers)


def named(start: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """The arrays with this before their names: what `under` undoes."""
    return {start + name: array for name, array in arrays.items()}


def refuse_unknown(method: str, given: dict[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise DafuseError(
            f"the method {method} has no option {', '.join(unknown)}; "
            f"it has {', '.join(known) or 'none'}" + did_you_mean(unknown[0], known)
        )

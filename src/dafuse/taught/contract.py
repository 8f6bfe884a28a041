"""The contract between the product and a method that people teach. No torch here.

A taught method is made for a network, with settings. It learns lessons, drops classes, merges with
another of its kind, and gives its state as arrays, whose names say what they belong to:

    class/...     an entry for each class, in the order of the classes: its record
    shared/...    belongs to all classes
    predict/...   the classifier over features. It is computed from the others, and some methods
                  compute it again if `load` does not get it (`table.TaughtEntry.solves_again`)
    derived/...   totals over the records of many classes, by which a lesson goes on without reading
                  all of them (`ReadsRecords`). They can be made again from the records

and a few numbers. Where ``class/which`` names classes, the records are of these alone, and those of
all others stay as they are stored. Storage, undo, forgetting and the ledger need nothing else.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypedDict, runtime_checkable

import numpy as np

from dafuse.backbones.backbone import Backbone, Need
from dafuse.data.dataset import Item
from dafuse.errors import DafuseError, did_you_mean
from dafuse.heads.arrays import under
from dafuse.heads.factored import head_from
from dafuse.heads.head import Head
from dafuse.methods.options import NonNegativeFloat, PositiveInt, Range, require_valid
from dafuse.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays = dict[str, np.ndarray]
Numbers = dict[str, float]
Encode = Callable[[np.ndarray], np.ndarray]  # squares [B, 3, S, S], 0 to 255 -> features [B, F]
CLASS, SHARED, PREDICT, DERIVED = "class/", "shared/", "predict/", "derived/"
WHICH = CLASS + "which"


class LessonOptions(TypedDict, total=False):
    """Options of one lesson, for a method that trains; what is left out has its default."""

    epochs: PositiveInt
    lr: NonNegativeFloat
    holdout: Annotated[float, Range(0, 0.9999)]
    flip: bool


@dataclass(frozen=True)
class Lesson:
    """Images with the numbers of their classes: known classes first, then new ones."""

    names: list[str]  # of all classes, known and new
    known: int  # number of classes known before
    counts_C: list[int]  # for each class, its images before these
    images: list[Item]  # all can be read
    labels_N: np.ndarray
    feats_NF: np.ndarray | None  # None for a method that trains, which reads the images itself
    options: dict[str, Any] = field(default_factory=dict)  # for this lesson only
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class Tested:
    """Labels and answers of the lesson's images that tested the method."""

    how: str  # in words: "each left out in turn"
    labels_N: np.ndarray
    answers_N: np.ndarray


class Teachable(Protocol):
    """A method as people teach it: made for a network, then `load`ed or taught from nothing."""

    trains: ClassVar[bool]  # whether it reads a lesson's images itself; others get features
    needs_torch: ClassVar[bool]
    encoder_reads_shared: ClassVar[bool]  # whether `encoder` and `graph` read the shared arrays
    remains: ClassVar[str]  # what stays of a dropped class, in words; "" for nothing

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None: ...

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return every setting, defaults for those not given; refuse unknown ones."""

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        """Return what the method needs of a network with these settings."""

    @classmethod
    def takes(cls, settings: dict[str, Any]) -> Collection[str]:
        """Return the names of the `LessonOptions` that some lesson can take."""

    def learn(self, lesson: Lesson) -> Tested:
        """Learn new classes, and more images of known ones."""

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only, in this order."""

    def merge(self, other: Any, numbers: Sequence[int]) -> None:
        """Add all that another was taught; its class i is ``numbers[i]`` here."""

    def arrays(self) -> Arrays: ...

    def numbers(self) -> Numbers: ...

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        """Restore the method from its arrays and numbers."""

    def encoder(self, shared: Arrays) -> Encode:
        """Return the map from pixels to the features that `Head` takes; it needs no records."""

    def graph(self, shared: Arrays) -> "ModelProto":
        """Return the `encoder` as an ONNX graph whose output is called ``features``."""


@runtime_checkable
class InShards(Teachable, Protocol):
    """A method whose lessons may come in shards, each summed up apart from the others.

    A blank one collects the images of a shard, on this machine or another. The one that is taught
    takes up what was collected, shard by shard, and then learns the lesson's other images: those
    that are left out in turn, which must not be in what it took up. Together they are the lesson.
    """

    def collect(self, feats_NF: np.ndarray, labels_N: np.ndarray) -> None:
        """Add images to the sums, and solve nothing."""

    def collected(self) -> Arrays:
        """Return the sums of what was collected, exactly, with an entry for each class."""

    def take_up(self, collected: Arrays, numbers: Sequence[int], classes: int) -> None:
        """Add what another collected; its class i is ``numbers[i]`` here.

        The lesson has at most so many classes, known ones included. `learn` must follow.
        """


class ReadsRecords(Protocol):
    """A method that reads the records of many classes one by one, when it needs them."""

    def read_records(self, record_of: Callable[[int], Arrays]) -> None:
        """Take the function that reads the record of a class; `load` then gets none."""


def head_of(arrays: Arrays, numbers: Numbers) -> Head:
    """Return the classifier over features, from the arrays under ``predict/``."""
    return head_from(under(PREDICT, arrays), numbers)


def options_of_lesson(
    method: str, takes: Collection[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that have a value; refuse what a method that takes these cannot take."""
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(given.keys() - LessonOptions.__annotations__.keys()):
        raise TypeError(f"learn has no option {', '.join(unknown)}")
    if unfit := [name for name in given if name not in takes]:
        raise DafuseError(f"{', '.join(unfit)}: only for methods that train, and {method} does not")
    require_valid(LessonOptions, given)
    return given


def named(start: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Put this prefix before the names of the arrays; `under` undoes it."""
    return {start + name: array for name, array in arrays.items()}


def refuse_unknown(method: str, given: dict[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise DafuseError(
            f"the method {method} has no option {', '.join(unknown)}; "
            f"it has {', '.join(known) or 'none'}" + did_you_mean(unknown[0], known)
        )

"""A trial: one thing that is done to dafuse, and what came of it; a part makes trials of a kind."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Outcome(StrEnum):
    SURVIVED = "survived"
    LOST = "lost"  # something that was there before, or that was said to be saved
    WRONG = "wrong"  # another answer than before, without a word; a promise that was not kept
    TRACEBACK = "traceback"  # where a sentence belongs; a 500 of the server


@dataclass(frozen=True)
class Trial:
    """The outcome of one trial, under a heading of the table.

    One seed gives the same trial again, but for the moment of a kill that waits for no call.
    """

    what: str  # such as "learn, new classes"
    seed: int
    outcome: Outcome = Outcome.SURVIVED
    detail: str = ""  # of a failure: what was done and what was seen, in a line
    count: int = 1  # things tried in it, for those too small to have a seed of their own


class Part(Protocol):
    """Trials of one kind. It is made with an empty folder of its own to work in."""

    def trials(self, seed: int) -> Iterator[Trial]:
        """The trials of this seed, usually one; everything in them is chosen by it."""

    def close(self) -> None:
        """End what was started and say nothing; the folder is deleted by whoever gave it."""


class MakePart(Protocol):
    def __call__(self, place: Path) -> Part: ...

"""A lesson that several devices learn together, each in a process of its own.

The first process reads the images, holds the model and writes it. When there is something to learn,
it starts the others, or meets those that torchrun started, and tells them the lesson and what the
method knows. All learn it, sharing the work (`engine.ranks`); the first one keeps what was learned.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dafuse.engine.ranks import Ranks, saying_that_one_ended
from dafuse.progress import Progress
from dafuse.taught.contract import Arrays, Lesson, Numbers
from dafuse.taught.table import find_taught

if TYPE_CHECKING:
    from dafuse.taught.torch_extractor import TorchExtractor


@dataclass(frozen=True)
class SharedLesson:
    """The part of a lesson that the other processes are told."""

    lesson: Lesson
    arrays: Arrays  # of the method; none before its first lesson
    numbers: Numbers


def share_lesson(method: Any, lesson: Lesson) -> None:
    """Tell a lesson to the processes of the other devices, if there are any."""
    ranks = Ranks(method.extractor.fabric)
    if ranks.count == 1 or not ranks.is_first:
        return
    ranks.begin(lambda: None)
    arrays, numbers = (method.arrays(), method.numbers()) if method.state else ({}, {})
    ranks.broadcast(SharedLesson(replace(lesson, progress=Progress()), arrays, numbers))


def follow(extractor: "TorchExtractor", method: str, settings: dict[str, Any], seed: int) -> None:
    """Learn what the first process tells, for what this process's device can do of it."""
    ranks = Ranks(extractor.fabric)
    ranks.begin(lambda: None)
    nothing: SharedLesson | None = None
    if (told := ranks.broadcast(nothing)) is None:
        return
    taught = find_taught(method, settings)(extractor, settings, seed)
    if told.arrays:
        taught.load(told.arrays, told.numbers)
    taught.learn(told.lesson)


@contextmanager
def several(extractor: "TorchExtractor") -> Iterator[None]:
    """Say it where one of the processes ends before its time; let go those that still wait."""
    ranks = Ranks(extractor.fabric)
    with saying_that_one_ended(ranks, "the model is as it was before; teach it again"):
        yield
        if ranks.is_first and ranks.still_awaited:
            ranks.begin(lambda: None)
            ranks.broadcast(None)

"""What a source of images lists before anything is decoded, and what it leaves out."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

Part = Literal["train", "test"]
SHOWN = 3  # files that a line names


class Skipped(NamedTuple):
    """A file, a folder or a part of a source that is left out, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


class Listed(NamedTuple):
    """One part of a source: images, the name of each one's class, and what was left out."""

    items: Sequence[Path | np.ndarray] | np.ndarray
    names: list[str]
    skipped: list[Skipped]


def no_test_part(what: str, source: str) -> Skipped:
    """What is said where a source is tested that has a training part alone."""
    return Skipped("the test part", f"no test {what} in {source}: tested on its training images")


def in_few_lines(skipped: Iterable[Skipped]) -> list[str]:
    """A line for each reason: the first files by name, and how many more there are."""
    by_reason: dict[str, list[str]] = {}
    for one in skipped:
        by_reason.setdefault(one.why, []).append(one.name)
    lines = []
    for why, names in by_reason.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"skipped {', '.join(names[:SHOWN])}{more}: {why}")
    return lines

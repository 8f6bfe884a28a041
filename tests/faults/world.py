"""A world for the storm: a few small drawn images, and a model taught some of them."""

import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from dafuse.data.sketches import SKETCHES, write_sketches
from faults.command import Ended, run

HEIGHT = 40  # pixels of a picture: drawn and learned in no time
COUNT = 4  # pictures of a class
FIRST, SECOND, ASKED = slice(0, 3), slice(3, 5), slice(0, 5)  # which of the classes drawn


class World:
    """Made once in a folder; every trial gets copies of what it may break."""

    def __init__(self, place: Path) -> None:
        self.place = place
        names = list(SKETCHES)
        self.first = write_sketches(place / "first", names[FIRST], COUNT, 1, HEIGHT)
        self.second = write_sketches(place / "second", names[SECOND], COUNT, 2, HEIGHT)
        self.more = write_sketches(place / "more", names[FIRST], COUNT, 3, HEIGHT)
        self.asked = write_sketches(place / "asked", names[ASKED], 1, 4, HEIGHT)

    @cached_property
    def model(self) -> Path:
        """A model of two lessons, five classes. Copy it before anything changes it."""
        return self.taught("model", self.first, self.second)

    def taught(self, name: str, *lessons: Path) -> Path:
        """A new model that had these lessons."""
        model = self.place / name
        for lesson in lessons:
            require_well(run("learn", model, lesson))
        return model

    def copy(self, model: Path, name: str = "copy") -> Path:
        """A copy to break; the one of this name before it is deleted."""
        there = self.place / name
        shutil.rmtree(there, ignore_errors=True)
        return Path(shutil.copytree(model, there, symlinks=True))

    @cached_property
    def other(self) -> Path:
        """A model of one lesson, to be merged with the first. Change it in no way."""
        return self.taught("other", self.more)

    def answers(self, model: Path, before: Callable[[], None] | None = None) -> Ended:
        """Ask a model about the images of this world; it answers in JSON."""
        return run("predict", model, self.asked, "--json", "--top", "5", before=before)


def require_well(ended: Ended) -> Ended:
    """Stop the storm where what has to work before a trial does not."""
    if ended.status != 0:
        raise RuntimeError(f"a command that must work did not: {ended}")
    return ended

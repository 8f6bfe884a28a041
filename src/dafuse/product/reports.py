"""What a step of learning found, as numbers and as sentences. No torch here."""

import math
from dataclasses import asdict, dataclass
from typing import Any

FEW = 10  # images; the statistics of fewer are partly borrowed (heads.gaussians.ENOUGH)
SHOWN = 8  # names in a line


@dataclass(frozen=True)
class Taught:
    """A class of the lesson."""

    name: str
    new: bool
    images: int  # learned from, in this step
    held_out: int  # kept back to test
    known_from: int  # images its statistics now stand for
    left_out: int = 0  # of few images: those that were left out in turn, and looked for
    found: int = 0  # of them, nearer to the rest of the class than to any other class
    resembles: str | None = None  # of one image: the class most like it

    def how_sure(self) -> str:
        """Of a class of few images, in words for people who know no statistics."""
        kept_back = f", {self.held_out} kept back to test" if self.held_out else ""
        of = f"{self.name} ({_count(self.known_from, 'image', 'images')}{kept_back})"
        if self.left_out:
            low, high = likely_share(self.found, self.left_out)
            which = "" if self.left_out == self.known_from else " of this lesson"
            return (
                f"{of}: {self.found} of {self.left_out}{which} recognised when left out in turn; "
                f"a rough guess for new ones is {low:.0%} to {high:.0%}"
            )
        if self.resembles is not None:
            return f"{of}: one image cannot be tested; it looks most like {self.resembles}"
        return f"{of}: the only class, so there is nothing to mistake it for"


@dataclass(frozen=True)
class Alike:
    """An old class that a new one resembles."""

    new: str
    old: str
    share: float  # of one of the two that is taken for the other
    measured: bool  # on held-out images; else estimated from statistics


@dataclass(frozen=True)
class LearnReport:
    version: int
    seconds: float
    classes: list[Taught]
    held_out_accuracy: float | None  # of this lesson's classes; None: nothing was held out
    old_before: float | None  # accuracy of the classes known before, estimated from statistics
    old_after: float | None
    alike: list[Alike]
    skipped: list[str]  # files that could not be read, and why

    @property
    def new(self) -> list[Taught]:
        return [one for one in self.classes if one.new]

    @property
    def more(self) -> list[Taught]:
        return [one for one in self.classes if not one.new]

    @property
    def few(self) -> list[Taught]:
        return [one for one in self.classes if one.known_from + one.held_out < FEW]

    def record(self) -> dict[str, Any]:
        """What the version keeps of it: counts and accuracies, no file names."""
        kept = asdict(self)
        del kept["version"], kept["skipped"]
        return kept

    def lines(self) -> list[str]:
        images = sum(one.images for one in self.classes)
        what = _count(len(self.new), "new class", "new classes") if self.new else "no new class"
        lines = [
            f"learned {what} from {_count(images, 'image', 'images')} in {self.seconds:.0f} s: "
            f"version {self.version}"
        ]
        for one in self.more:
            more = _count(one.images, "more image", "more images")
            lines.append(f"  {one.name}: {more}, {one.known_from} in all")
        held_out = sum(one.held_out for one in self.classes)
        if self.held_out_accuracy is not None:
            lines.append(
                f"  this lesson's classes: {self.held_out_accuracy:.1%} of "
                f"{_count(held_out, 'held-out image', 'held-out images')} right"
            )
        else:
            lines.append("  no image was held out, so how well these classes do is not known")
        if self.old_before is not None and self.old_after is not None:
            lines.append(
                f"  classes known before: {self.old_before:.1%} before, {self.old_after:.1%} now "
                "(estimated from their statistics)"
            )
        if self.few:
            lines += self._few_lines()
        for pair in self.alike:
            how = "of its held-out images" if pair.measured else "(estimated)"
            lines.append(f"  alike: {pair.new} and {pair.old}, mistaken {pair.share:.0%} {how}")
        return lines

    def _few_lines(self) -> list[str]:
        lines = [f"  few images, and less than {FEW} make a class unsure: teach more when you can"]
        lines += [f"    {one.how_sure()}" for one in self.few[:SHOWN]]
        if len(self.few) > SHOWN:
            left_out, found = (sum(getattr(o, n) for o in self.few) for n in ("left_out", "found"))
            together = f"; of all {found} of {left_out} recognised" if left_out else ""
            lines.append(f"    and {len(self.few) - SHOWN} more{together}")
        return lines


def likely_share(found: int, of: int) -> tuple[float, float]:
    """Between what the share lies of which so many were found: Wilson's interval of 95 %.

    It is wide where there are few. That it holds for new images, too, takes that they are like
    these: it did for 83 % of the classes in docs/product.md.
    """
    z = 1.96
    middle = (found + z * z / 2) / (of + z * z)
    half = z * math.sqrt(found * (of - found) / of + z * z / 4) / (of + z * z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"

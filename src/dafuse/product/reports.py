"""What a step of learning found, as numbers and as sentences. No torch here."""

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
        return [one for one in self.classes if one.known_from < FEW]

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
            named = [f"{one.name} ({one.known_from})" for one in self.few]
            more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            lines.append(
                f"  few images: {', '.join(named[:SHOWN])}{more}; with less than {FEW}, "
                "a class is unsure: teach it more when you can"
            )
        for pair in self.alike:
            how = "of its held-out images" if pair.measured else "(estimated)"
            lines.append(f"  alike: {pair.new} and {pair.old}, mistaken {pair.share:.0%} {how}")
        return lines


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"

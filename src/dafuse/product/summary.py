"""Summaries in plain lines: of a lesson that was learned, and of a model with its history.

No torch here.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import ClassRecord, Version
from dafuse.taught.contract import Lesson, Tested
from dafuse.wording import counted

FEW = 10  # images: a class of fewer is unsure
SHOWN = 8  # names in a line, and warnings
IN_HISTORY = 12  # classes of a step that the history shows
ALIKE = 0.1  # share of a class that is taken for another, to be worth a warning
LEAST_TESTED = 5  # images of a class, for their mistakes to say something


@dataclass(frozen=True)
class Taught:
    """A class of the lesson."""

    name: str
    new: bool
    images: int  # in this lesson
    known_from: int  # images it was learned from by now
    tested: int  # images of this lesson that it was tried on
    right: int  # of them

    def how_sure(self) -> str:
        """Return a line about a class of few images."""
        what = f"{self.name} ({counted(self.known_from, 'image')})"
        if not self.tested:
            return f"{what}: too few to test"
        return f"{what}: {self.right} of {self.tested} recognised"


@dataclass(frozen=True)
class Alike:
    """Two classes that are mistaken for each other."""

    name: str
    other: str
    share: float  # of the first one's tested images that were taken for the other


@dataclass(frozen=True)
class LearnReport:
    """A report of a lesson; it has no classes if all its images were taught before."""

    version: int
    seconds: float
    classes: list[Taught] = field(default_factory=list)
    accuracy: float | None = None  # of this lesson's classes; None: nothing could be tested
    tested: int = 0  # images
    how: str = ""  # they were tested, in words
    alike: list[Alike] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # files and folders left out, and why
    again: int = 0  # images that were taught before, and left out
    twice: int = 0  # images that were in this lesson already, and left out
    known: int = 0  # classes of the model after it

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
        """Return what the version keeps of it: counts and accuracies, no names of images."""
        kept = asdict(self)
        del kept["version"], kept["skipped"]
        return kept

    def lines(self) -> list[str]:
        if not self.classes:
            left_out = self._left_out_lines() or ["every image was taught before as another class"]
            said = "; ".join(line.strip() for line in left_out)
            return [f"nothing new: {said}; the model stays at version {self.version}"]
        images = sum(one.images for one in self.classes)
        what = [counted(len(self.new), "new class", "new classes")] if self.new else []
        what += [f"more of {counted(len(self.more), 'class', 'classes')}"] if self.more else []
        lines = [
            f"learned {' and '.join(what)} from {counted(images, 'image')} in "
            f"{self.seconds:.1f} s: version {self.version}"
        ]
        lines += self._left_out_lines()
        for one in self.more:
            more = counted(one.images, "more image")
            lines.append(f"  {one.name}: {more}, {one.known_from} in all")
        if self.accuracy is not None:
            sample = "a sample of " if "in turn" in self.how and self.tested < images else ""
            lines.append(
                f"  this lesson's classes: {self.accuracy:.1%} of {sample}"
                f"{counted(self.tested, 'image')} right, {self.how}"
            )
        elif self.known == 1:
            lines.append("  the only class so far: every image is taken for it; teach another one")
        else:
            lines.append("  no image could be tested, so how well these classes do is not known")
        if self.few:
            lines += self._few_lines()
        for pair in self.alike:
            lines.append(f"  alike: {pair.share:.0%} of {pair.name} was taken for {pair.other}")
        return lines

    def _left_out_lines(self) -> list[str]:
        lines = []
        if self.again:
            lines.append(f"  skipped {counted(self.again, 'image')} taught before")
        if self.twice:
            lines.append(
                f"  skipped {counted(self.twice, 'copy', 'copies')} of images in this lesson"
            )
        return lines

    def _few_lines(self) -> list[str]:
        lines = [f"  few images: fewer than {FEW} make a class unsure, teach more when you can"]
        lines += [f"    {one.how_sure()}" for one in self.few[:SHOWN]]
        if len(self.few) > SHOWN:
            lines.append(f"    and {len(self.few) - SHOWN} more")
        return lines


def make_report(
    version: int,
    lesson: Lesson,
    counts_C: np.ndarray,
    before_C: np.ndarray,
    tested: Tested,
    seconds: float,
) -> LearnReport:
    """Report a lesson of so many images of each class, beside those that it had before."""
    classes = len(lesson.names)
    tested_C = np.bincount(tested.labels_N, minlength=classes)
    right_N = tested.answers_N == tested.labels_N
    right_C = np.bincount(tested.labels_N[right_N], minlength=classes)
    return LearnReport(
        version=version,
        seconds=seconds,
        classes=[
            Taught(
                name=lesson.names[number],
                new=number >= lesson.known,
                images=int(counts_C[number]),
                known_from=int(counts_C[number] + before_C[number]),
                tested=int(tested_C[number]),
                right=int(right_C[number]),
            )
            for number in np.flatnonzero(counts_C).tolist()
        ],
        accuracy=float(right_N.mean()) if len(right_N) and classes > 1 else None,
        tested=len(right_N),
        how=tested.how,
        alike=_alike(lesson.names, tested, tested_C),
        known=classes,
    )


def _alike(names: list[str], tested: Tested, tested_C: np.ndarray) -> list[Alike]:
    """Return classes of which many images were taken for one other class, the worst first."""
    pairs = Counter(zip(tested.labels_N.tolist(), tested.answers_N.tolist(), strict=True))
    found = [
        Alike(names[true], names[answer], count / int(tested_C[true]))
        for (true, answer), count in pairs.items()
        if true != answer and tested_C[true] >= LEAST_TESTED and count >= ALIKE * tested_C[true]
    ]
    return sorted(found, key=lambda pair: (-pair.share, pair.name))[:SHOWN]


@dataclass(frozen=True)
class Summary:
    path: str
    version: Version
    history: list[Version]  # the oldest that undo can reach first
    bytes: int  # of everything in the folder
    damaged: dict[int, str]  # versions that undo cannot bring back, and why

    @property
    def classes(self) -> list[ClassRecord]:
        return self.version.classes

    def lines(self) -> list[str]:
        backbone = self.version.backbone
        images = sum(record.images for record in self.classes)
        lines = [
            f"{self.path}: {counted(len(self.classes), 'class', 'classes')} from "
            f"{counted(images, 'image')}, "
            f"version {self.version.number}, {self.bytes / 1e6:.2f} MB",
            f"method {self.version.method}, backbone {backbone.tag} "
            f"(SHA-256 {backbone.sha256[:12]}), {backbone.size} pixels",
            "",
            f"{'class':24} {'images':>7}  {'learned':23} updated",
        ]
        for record in self.classes:
            updated = record.updated if record.updated != record.learned else ""
            lines.append(
                f"{record.name:24} {record.images:7}  {when(record.learned):23} {when(updated)}"
            )
        return [*lines, "", "history", *self._history_lines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return steps_of(self.history)

    def _history_lines(self) -> list[str]:
        said = {step["version"]: described(step) for step in self.steps}
        for number, why in self.damaged.items():
            did = f"{said[number]}; " if number in said else ""
            said[number] = f"{did}damaged: {why}"
        return [f"  {number:3}  {what}" for number, what in sorted(said.items())]


def steps_of(history: list[Version]) -> list[dict[str, Any]]:
    """Return every step, the oldest first; also those that undo cannot reach any more."""
    found = {step["version"]: step for one in history for step in one.history}
    return [found[number] for number in sorted(found)]


def summarise(folder: ModelFolder) -> Summary:
    def load(version: Version) -> Summary:
        sizes = [file.lstat().st_size for file in folder.files()]
        history, damaged = _looked_through(folder, version)
        if damaged:
            folder.require_still(version)
        return Summary(str(folder.path), version, history, sum(sizes), damaged)

    return folder.read(load)


def _looked_through(folder: ModelFolder, last: Version) -> tuple[list[Version], dict[int, str]]:
    """Return the versions that are known, and what is wrong with which."""
    history, cut = folder.readable_history(last)
    damaged = {}
    if cut is not None and history[0].parent is not None:
        damaged[history[0].parent.number] = f"{cut}; undo ends here"
    whole: set[str] = set()  # objects that versions share are read once
    first: dict[str, int] = {}  # what is wrong with several is said of the first
    for version in history:
        try:
            folder.require_whole(version, whole)
        except DafuseError as damage:
            before = first.setdefault(str(damage), version.number)
            same = f"as version {before} is"
            damaged[version.number] = str(damage) if before == version.number else same
    return history, damaged


def described(step: dict[str, Any]) -> str:
    """Describe a step of the history in a line."""
    return f"{when(step['when'])}  {WORDS[step['did']](step)}"


def when(time: str) -> str:
    return time.replace("T", " ").removesuffix("+00:00") + " UTC" if time else ""


def _learn(step: dict[str, Any]) -> str:
    taught = [
        f"{one['name']} ({'' if one['new'] else '+'}{one['images']})"
        for one in sorted(step["classes"], key=lambda one: not one["new"])
    ]
    if len(taught) > IN_HISTORY:
        images = sum(one["images"] for one in step["classes"])
        others = counted(len(taught) - IN_HISTORY, "other class", "other classes")
        taught = [*taught[:IN_HISTORY], f"and {others} ({counted(images, 'image')} in all)"]
    accuracy = step["accuracy"]
    tested = "" if accuracy is None else f"; {accuracy:.1%} of images right, {step['how']}"
    return f"learned {', '.join(taught)}{tested}"


def _forget(step: dict[str, Any]) -> str:
    names = list(step["classes"])
    if len(names) > IN_HISTORY:
        others = counted(len(names) - IN_HISTORY, "other class", "other classes")
        names = [*names[:IN_HISTORY], f"and {others}"]
    return f"forgot {', '.join(names)}" + (" for good" if step["for_good"] else "")


def _rename(step: dict[str, Any]) -> str:
    return f"renamed {step['old']} to {step['new']}"


def _merge(step: dict[str, Any]) -> str:
    return f"merged {', '.join(step['models'])}: {step['classes']} classes"


WORDS = {"learn": _learn, "forget": _forget, "rename": _rename, "merge": _merge}

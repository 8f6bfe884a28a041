"""One lesson: what the method learns of its images, the report, the version that follows."""

import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.data.dataset import Dataset
from dafuse.data.listed import in_few_lines
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import Objects
from dafuse.product.reading import Read, plan, read, without_empty
from dafuse.product.seen import Seen, with_lesson
from dafuse.product.sources import none_readable
from dafuse.product.version import ClassRecord, Version, now
from dafuse.progress import Progress
from dafuse.taught.contract import Encode, Lesson, Teachable, Tested
from dafuse.wording import counted

FEW = 10  # images: a class of fewer is unsure
SHOWN = 8  # names in a line, and warnings
ALIKE = 0.1  # share of a class that is taken for another, to be worth a warning
LEAST_TESTED = 5  # images of a class, for their mistakes to say something


def teach(
    dataset: Dataset,
    method: Teachable,
    encode: Encode | None,
    version: Version,
    seen: Seen | None,
    eye: Extractor,
    options: dict[str, Any],
    progress: Progress,
) -> "tuple[LearnReport, Lesson | None, Read]":
    """Read the images, change the method by them, and see how well it does.

    A method that trains computes features itself and comes without an encoder. Where all images
    were taught before, there is no lesson, and the method stays as it is.
    """
    start = time.perf_counter()
    for line in in_few_lines(dataset.skipped):
        progress.say(line)
    planned = plan(version, dataset)
    found = read(planned, version, seen, encode, eye.preprocessing, eye.threads, progress)
    taught = without_empty(planned, found)
    for line in in_few_lines(found.skipped):
        progress.say(line)
    skipped = [str(one) for one in (*dataset.skipped, *found.skipped)]
    if not found.rows:
        if len(found.unreadable) == len(planned.images):
            raise none_readable(found.skipped)
        seconds = time.perf_counter() - start
        return nothing_new(version.number, found.again, skipped, seconds), None, found
    new = [0] * (len(taught.names) - taught.known)
    lesson = Lesson(
        taught.names,
        taught.known,
        [*(record.images for record in version.classes), *new],
        taught.images,
        taught.labels_N,
        found.feats_NF,
        options,
        progress,
    )
    if method.trains:  # which shows how far it is itself
        tested = method.learn(lesson)
    else:
        with progress.bar("solving", 0):
            tested = method.learn(lesson)
    report = make_report(version.number + 1, lesson, tested, time.perf_counter() - start)
    report = replace(report, skipped=skipped, again=found.again, twice=found.twice)
    return report, lesson, found


def remember(
    folder: ModelFolder, version: Version, seen: Seen | None, lesson: Lesson, found: Read
) -> dict[str, Any]:
    """Keep the hashes of the pictures that were learned; return what of the version changes."""
    if seen is None:
        return {}
    ids = [record.id for record in version.classes]
    ids += [version.next_id + number for number in range(len(lesson.names) - lesson.known)]
    class_ids = [ids[label] for label in lesson.labels_N]
    objects = with_lesson(folder, version, seen, found.digests, class_ids)
    return {"key": seen.key, "seen": objects}


def next_version(
    version: Version,
    digest: str,
    report: "LearnReport",
    lesson: Lesson,
    found: Read,
    objects: Objects,
    numbers: dict[str, float],
    options: dict[str, Any],
    remembered: dict[str, Any],
) -> Version:
    """The version that the lesson made of this one, whose file has this hash."""
    when = now()
    counts_C = np.bincount(lesson.labels_N, minlength=len(lesson.names))
    pixels_C = np.bincount(lesson.labels_N, found.pixels, len(lesson.names))
    classes = list(version.classes)
    for number, name in enumerate(lesson.names[lesson.known :]):
        classes.append(ClassRecord(version.next_id + number, name, 0, 0, when, when, ""))
    classes = [
        replace(
            record,
            images=record.images + int(images),
            pixels=record.pixels + int(pixels),
            updated=when if images else record.updated,
            record=digest_of_record,
        )
        for record, images, pixels, digest_of_record in zip(
            classes, counts_C, pixels_C, objects.records, strict=True
        )
    ]
    return version.next(
        {"did": "learn", "when": when, **report.record(), **options},
        digest,
        next_id=version.next_id + len(lesson.names) - lesson.known,
        flip=options.get("flip", version.flip),
        classes=classes,
        shared=objects.shared,
        predict=objects.predict,
        numbers=numbers,
        **remembered,
    )


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
        """What is known of a class of few images."""
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
    version: int
    seconds: float
    classes: list[Taught]
    accuracy: float | None  # of this lesson's classes; None: nothing could be tested
    tested: int  # images
    how: str  # they were tested, in words
    alike: list[Alike]
    skipped: list[str]  # files and folders that were left out, and why
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
        """What the version keeps of it: counts and accuracies, no names of images."""
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


def nothing_new(version: int, again: int, skipped: list[str], seconds: float) -> LearnReport:
    """The report of a lesson whose images were all taught before."""
    return LearnReport(version, seconds, [], None, 0, "", [], skipped, again)


def make_report(version: int, lesson: Lesson, tested: Tested, seconds: float) -> LearnReport:
    classes = len(lesson.names)
    counts_C = np.bincount(lesson.labels_N, minlength=classes)
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
                known_from=int(counts_C[number]) + lesson.counts_C[number],
                tested=int(tested_C[number]),
                right=int(right_C[number]),
            )
            for number in np.flatnonzero(counts_C).tolist()
        ],
        accuracy=float(right_N.mean()) if len(right_N) and classes > 1 else None,
        tested=len(right_N),
        how=tested.how,
        alike=_alike(lesson.names, tested, tested_C),
        skipped=[],
        known=classes,
    )


def _alike(names: list[str], tested: Tested, tested_C: np.ndarray) -> list[Alike]:
    """Classes of which many images were taken for one other class, the worst first."""
    pairs = Counter(zip(tested.labels_N.tolist(), tested.answers_N.tolist(), strict=True))
    found = [
        Alike(names[true], names[answer], count / int(tested_C[true]))
        for (true, answer), count in pairs.items()
        if true != answer and tested_C[true] >= LEAST_TESTED and count >= ALIKE * tested_C[true]
    ]
    return sorted(found, key=lambda pair: (-pair.share, pair.name))[:SHOWN]

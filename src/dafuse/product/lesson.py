"""One lesson: which images are learned, what the method learns of them, the version that follows.

No torch here.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.data.class_names import check_class_names, composed
from dafuse.data.dataset import Dataset, Skipped, in_few_lines
from dafuse.data.decoding import AT_ONCE, in_parts
from dafuse.data.images import UnreadableImage
from dafuse.data.own_data import none_readable
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import put_arrays
from dafuse.product.seen import Seen, digest_of, with_lesson
from dafuse.product.summary import LearnReport, make_report
from dafuse.product.version import ClassRecord, Version, now
from dafuse.progress import Progress
from dafuse.taught.contract import Arrays, Encode, Lesson, Teachable


@dataclass(frozen=True)
class Planned:
    """A lesson before its images are read: all class names, and the label of each image."""

    names: list[str]  # of all classes, known and new
    known: int
    images: list[Path | np.ndarray]
    labels_N: np.ndarray


@dataclass
class Read:
    """The images to learn, as they were read; and counts of those left out."""

    rows: list[int]  # which images these are
    feats: list[np.ndarray]  # of each, where features were asked for
    pixels: list[int]  # numbers in each image: height x width x 3
    digests: list[bytes]  # of each, where images are recognised
    skipped: list[Skipped]  # could not be read, or were taught as another class
    unreadable: set[int]  # which images could not be read
    again: int = 0  # images that were taught before, as the same class
    twice: int = 0  # images that are in the lesson already, in the same class

    @property
    def feats_NF(self) -> np.ndarray | None:
        return np.stack(self.feats) if self.feats else None


class _Cut(NamedTuple):
    """The parts of a decoded image that a lesson needs."""

    pixels: int
    digest: bytes  # b"": images are not recognised
    taught_as: int | None  # the id of the class that it was taught as before
    square_3SS: np.ndarray | None


def teach(
    dataset: Dataset,
    method: Teachable,
    encode: Encode | None,
    version: Version,
    seen: Seen | None,
    extractor: Extractor,
    options: dict[str, Any],
    progress: Progress,
) -> tuple[LearnReport, Lesson | None, Read]:
    """Read the images, change the method by them, and see how well it does.

    A method that trains computes features itself and comes without an encoder. Where all images
    were taught before, there is no lesson, and the method stays as it is.
    """
    start = time.perf_counter()
    for line in in_few_lines(dataset.skipped):
        progress.say(line)
    planned = plan(version, dataset)
    found = read(
        planned, version, seen, encode, extractor.preprocessing, extractor.threads, progress
    )
    taught = without_empty(planned, found)
    for line in in_few_lines(found.skipped):
        progress.say(line)
    skipped = [str(one) for one in (*dataset.skipped, *found.skipped)]
    if not found.rows:
        if len(found.unreadable) == len(planned.images):
            raise none_readable(found.skipped)
        seconds = time.perf_counter() - start
        nothing = LearnReport(version.number, seconds, skipped=skipped, again=found.again)
        return nothing, None, found
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


def next_version(
    folder: ModelFolder,
    version: Version,
    digest: str,
    report: LearnReport,
    lesson: Lesson,
    found: Read,
    seen: Seen | None,
    arrays: Arrays,
    numbers: dict[str, float],
) -> Version:
    """Return the version that the lesson made of this one, whose file has this hash.

    Its objects are written: what the method has learned, and the hashes of the images.
    """
    when = now()
    counts_C = np.bincount(lesson.labels_N, minlength=len(lesson.names))
    pixels_C = np.bincount(lesson.labels_N, found.pixels, len(lesson.names))
    classes = list(version.classes)
    for number, name in enumerate(lesson.names[lesson.known :]):
        classes.append(ClassRecord(version.next_id + number, name, 0, 0, when, when, ""))
    classes = [
        replace(
            one,
            images=one.images + int(images),
            pixels=one.pixels + int(pixels),
            updated=when if images else one.updated,
        )
        for one, images, pixels in zip(classes, counts_C, pixels_C, strict=True)
    ]
    changes = put_arrays(folder, arrays, classes)
    if seen is not None:
        ids = [classes[label].id for label in lesson.labels_N]
        hashes = with_lesson(folder, version, seen, found.digests, ids)
        changes |= {"key": seen.key, "seen": hashes}
    return version.next(
        {"did": "learn", "when": when, **report.record(), **lesson.options},
        digest,
        next_id=version.next_id + len(lesson.names) - lesson.known,
        flip=lesson.options.get("flip", version.flip),
        numbers=numbers,
        **changes,
    )


def plan(version: Version, dataset: Dataset) -> Planned:
    known = version.names
    as_known = {composed(name): name for name in known}  # older models keep any spelling
    taught = [as_known.get(name, name) for name in dataset.classes]
    check_class_names(map(composed, [*known, *taught]), "the model and the lesson")
    names = [*known, *(name for name in taught if name not in known)]
    images = dataset.train.relabel(np.array([names.index(name) for name in taught]))
    items = [images.items[int(index)] for index in images.index]
    return Planned(names, len(known), items, images.labels)


def read(
    planned: Planned,
    version: Version,
    seen: Seen | None,
    encode: Encode | None,
    looks: Preprocessing,
    threads: int,
    progress: Progress,
) -> Read:
    """Decode each image once; with an encoder, also compute features of those to be learned.

    With ``seen``, images that were taught before are left out, and those that come twice.
    """

    def cut(pixels_HW3: np.ndarray) -> _Cut:
        digest = b"" if seen is None else digest_of(pixels_HW3)
        taught_as = None if seen is None else seen.class_of(digest)
        wanted = encode is not None and taught_as is None
        square = looks.centre_square(pixels_HW3) if wanted else None
        return _Cut(pixels_HW3.size, digest, taught_as, square)

    met: set[bytes] = set()

    def compute(cuts: list[_Cut]) -> list[tuple[_Cut, np.ndarray | None]]:
        fresh = [one.taught_as is None and _first(one.digest, met) for one in cuts]
        squares = [
            one.square_3SS
            for one, is_fresh in zip(cuts, fresh, strict=True)
            if is_fresh and one.square_3SS is not None
        ]
        feats = iter(encode(np.stack(squares)) if encode is not None and squares else ())
        return [
            (one, next(feats) if is_fresh and squares else None)
            for one, is_fresh in zip(cuts, fresh, strict=True)
        ]

    with progress.bar("reading" if encode is None else "features", len(planned.images)) as bar:
        found = in_parts(planned.images, AT_ONCE, compute, cut, threads)
        return _sorted_out(planned, version, found, bar.advance)


def _first(digest: bytes, met: set[bytes]) -> bool:
    """Tell whether this image comes for the first time, and note that it came."""
    if digest in met:
        return False
    if digest:
        met.add(digest)
    return True


def _sorted_out(
    planned: Planned,
    version: Version,
    found: Iterable[tuple[_Cut, np.ndarray | None] | UnreadableImage],
    advance: Callable[[], None],
) -> Read:
    """Sort images into those to learn and, with the reason, those left out."""
    result = Read([], [], [], [], [], set())
    names_of_ids = {record.id: record.name for record in version.classes}
    first_class: dict[bytes, str] = {}  # in this lesson
    for row, (image, one) in enumerate(zip(planned.images, found, strict=True)):
        advance()
        what = str(image) if isinstance(image, Path) else f"image {row}"
        name = planned.names[planned.labels_N[row]]
        if isinstance(one, UnreadableImage):
            result.unreadable.add(row)
            result.skipped.append(Skipped(what, str(one)))
            continue
        cut, feats_F = one
        if cut.taught_as is not None and cut.taught_as not in names_of_ids:
            raise DafuseError(
                f"the model has hashes of images of class {cut.taught_as}, and no such class: "
                "restore it from a copy, or teach with --no-recognise"
            )
        before = None if cut.taught_as is None else names_of_ids[cut.taught_as]
        if before == name:
            result.again += 1
        elif before is not None:
            result.skipped.append(Skipped(what, _taught_otherwise(before, name)))
        elif cut.digest in first_class:
            if first_class[cut.digest] == name:
                result.twice += 1
            else:
                result.skipped.append(Skipped(what, _in_both(first_class[cut.digest], name)))
        else:
            if cut.digest:
                first_class[cut.digest] = name
                result.digests.append(cut.digest)
            if feats_F is not None:
                result.feats.append(feats_F)
            result.rows.append(row)
            result.pixels.append(cut.pixels)
    return result


def _taught_otherwise(before: str, now: str) -> str:
    return (
        f"taught as {before} before, so not as {now} now; to correct that, rename {before}, or "
        f"forget it and teach its images again; --no-recognise teaches them as {now}, too"
    )


def _in_both(first: str, now: str) -> str:
    return f"the same image is in {first}, so it is not taught as {now}; keep it in one of them"


def without_empty(planned: Planned, found: Read) -> Planned:
    """Return the images to learn; new classes without any are left out and reported."""
    labels_N = planned.labels_N[found.rows]
    present = set(labels_N.tolist())
    kept = [
        number
        for number in range(len(planned.names))
        if number < planned.known or number in present
    ]
    readable = np.delete(planned.labels_N, sorted(found.unreadable))
    for number in sorted(set(planned.labels_N.tolist()) - set(readable.tolist())):
        found.skipped.append(Skipped(planned.names[number], "none of its images can be read"))
    new_number = np.full(len(planned.names), -1)
    new_number[kept] = np.arange(len(kept))
    return Planned(
        [planned.names[number] for number in kept],
        planned.known,
        [planned.images[row] for row in found.rows],
        new_number[labels_N],
    )

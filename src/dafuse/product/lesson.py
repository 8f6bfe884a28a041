"""One lesson: what the method learns of its images, the version that follows."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dafuse.data.dataset import Dataset
from dafuse.data.listed import in_few_lines
from dafuse.product.folder import ModelFolder, Objects
from dafuse.product.lesson_report import LearnReport, make_report, nothing_new
from dafuse.product.reading import Read, plan, read, without_empty
from dafuse.product.seen import Seen, with_lesson
from dafuse.product.sources import none_readable
from dafuse.product.version import ClassRecord, Version, now
from dafuse.progress import Progress
from dafuse.taught.contract import Encode, Lesson, Teachable
from dafuse.vit.extractor import Extractor


def teach(
    dataset: Dataset,
    method: Teachable,
    encode: Encode | None,
    version: Version,
    seen: Seen | None,
    eye: Extractor,
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
    report: LearnReport,
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
        classes=classes,
        shared=objects.shared,
        predict=objects.predict,
        numbers=numbers,
        **remembered,
    )

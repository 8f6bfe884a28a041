"""One lesson: which images are learned, what the method learns of them, the version that follows.

No torch here.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.data.dataset import Dataset, in_few_lines
from dafuse.data.own_data import none_readable
from dafuse.product.folder import ModelFolder
from dafuse.product.gathered import Gathered
from dafuse.product.objects import put_arrays, read_beside_records
from dafuse.product.reading import Reader, ReadShard, Shard
from dafuse.product.seen import MetSoFar, Seen, with_lesson
from dafuse.product.shards import FEW_NEW, Planned, plan
from dafuse.product.summary import LearnReport, make_report
from dafuse.product.version import ClassRecord, Version, now
from dafuse.progress import Bar, Progress
from dafuse.taught.contract import Arrays, InShards, Lesson, Teachable

# yields the parts of shards in their order; knows which images were met in those before
ReadShards = Callable[[list[Shard], MetSoFar, Bar], Iterator[ReadShard]]


def in_turn(reader: Reader) -> ReadShards:
    """Return a function that reads shards one after another, in this process."""

    def read(shards: list[Shard], met: MetSoFar, bar: Bar) -> Iterator[ReadShard]:
        for shard in shards:
            note = f"shard {shard.number + 1} of {len(shards)}" if len(shards) > 1 else ""
            yield reader.read(shard, met, partial(bar.advance, 1, note))

    return read


@dataclass(frozen=True)
class Learner:
    """The model as it is before a lesson: its version, and how its method is opened."""

    folder: ModelFolder
    version: Version
    extractor: Extractor
    blank: Callable[[], Teachable]
    opened: Callable[[], Teachable]  # with all that it has learned
    seen: Seen | None  # images taught before; None: none is recognised

    def plan(self, dataset: Dataset) -> Planned:
        return plan(self.version, dataset, isinstance(self.blank(), InShards))

    def reader(self, planned: Planned) -> Reader:
        """Return what reads the lesson in this process."""
        method = self.blank()
        encode = None
        if not method.trains:
            encode = method.encoder(read_beside_records(self.folder, self.version))
        return Reader(
            planned.names,
            {record.id: record.name for record in self.version.classes},
            self.seen,
            encode,
            self._collecting if planned.is_cut else None,
            self.extractor.preprocessing,
            self.extractor.threads,
        )

    def _collecting(self) -> InShards:
        method = self.blank()
        assert isinstance(method, InShards)
        return method


def teach(
    dataset: Dataset,
    learner: Learner,
    options: dict[str, Any],
    progress: Progress,
) -> tuple[LearnReport, Gathered, Lesson | None]:
    """Read the images, teach the method with them, and see how well it does.

    Where all images were taught before, there is no lesson, and the method stays as it is.
    """
    start, version = time.perf_counter(), learner.version
    for line in in_few_lines(dataset.skipped):
        progress.say(line)
    planned = learner.plan(dataset)
    read = in_turn(learner.reader(planned))
    found = _gathered(planned, learner.opened(), read, progress)
    if planned.is_cut and 0 < len(found.rows_N) < FEW_NEW * len(planned.images):
        found = _new_ones_alone(found, learner.opened(), read, progress)
    for line in in_few_lines(found.skipped):
        progress.say(line)
    skipped = [str(one) for one in (*dataset.skipped, *found.skipped)]
    if not len(found.rows_N):
        if found.none_is_readable:
            raise none_readable(found.skipped)
        seconds = time.perf_counter() - start
        nothing = LearnReport(version.number, seconds, skipped=skipped, again=found.again)
        return nothing, found, None
    method, lesson = found.method, found.lesson(version, options, progress)
    if method.trains:  # which shows how far it is itself
        tested = method.learn(lesson)
    else:
        with progress.bar("solving", 0):
            tested = method.learn(lesson)
    before_C = np.zeros(len(lesson.names), np.int64)
    before_C[: lesson.known] = [record.images for record in version.classes]
    seconds = time.perf_counter() - start
    report = make_report(version.number + 1, lesson, found.images_C, before_C, tested, seconds)
    report = replace(report, skipped=skipped, again=found.again, twice=found.twice)
    return report, found, lesson


def _gathered(
    planned: Planned, method: Teachable, read: ReadShards, progress: Progress
) -> Gathered:
    found = Gathered(planned, method)
    with progress.bar("reading" if method.trains else "features", len(planned.images)) as bar:
        for part in read(planned.shards(), found.met, bar):
            found.add(part)
    found.note_unreadable_classes()
    return found


def _new_ones_alone(
    before: Gathered, method: Teachable, read: ReadShards, progress: Progress
) -> Gathered:
    """Read the images to learn again, as a lesson without the many that were taught before.

    Only so are there enough of them among those that are tried.
    """
    found = _gathered(before.planned.only(before.rows_N), method, read, progress)
    found.skipped = before.skipped + found.skipped
    found.again, found.twice = before.again + found.again, before.twice + found.twice
    return found


def next_version(
    learner: Learner,
    digest: str,
    report: LearnReport,
    lesson: Lesson,
    found: Gathered,
    arrays: Arrays,
    numbers: dict[str, float],
) -> Version:
    """Return the version that the lesson made of this one, whose file has this hash.

    Its objects are written: what the method has learned, and the hashes of the images.
    """
    folder, version, seen = learner.folder, learner.version, learner.seen
    when = now()
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
        for one, images, pixels in zip(classes, found.images_C, found.pixels_C, strict=True)
    ]
    changes = put_arrays(folder, arrays, classes)
    if seen is not None:
        id_of = np.zeros(len(found.planned.names), np.int64)  # of each label
        id_of[found.numbers] = [one.id for one in classes]
        hashes = with_lesson(folder, version, seen, found.met.all(id_of))
        changes |= {"key": seen.key, "seen": hashes}
    return version.next(
        {"did": "learn", "when": when, **report.record(), **lesson.options},
        digest,
        next_id=version.next_id + len(lesson.names) - lesson.known,
        flip=lesson.options.get("flip", version.flip),
        numbers=numbers,
        **changes,
    )

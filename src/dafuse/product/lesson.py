"""One lesson: which images are learned, what the method learns of them, the version that follows.

No torch here.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.data.dataset import Dataset, in_few_lines
from dafuse.data.own_data import none_readable
from dafuse.product.folder import ModelFolder
from dafuse.product.gathered import Gathered
from dafuse.product.objects import put_arrays, read_shared
from dafuse.product.reading import Reader, ReadShard, Shard, reader_of
from dafuse.product.seen import MetSoFar, Seen, with_lesson
from dafuse.product.shards import FEW_NEW, Planned, ReadShards, plan
from dafuse.product.summary import LearnReport, make_report
from dafuse.product.unfinished import Unfinished, lesson_hash
from dafuse.product.version import ClassRecord, Version, now
from dafuse.progress import Bar, Progress
from dafuse.taught.contract import Arrays, InShards, Lesson, Teachable


@dataclass(frozen=True)
class Learner:
    """The model as it is before a lesson: its version, and how its method is opened."""

    folder: ModelFolder
    version: Version
    extractor: Extractor
    blank: Callable[[], Teachable]
    opened: Callable[[], Teachable]  # with all that it has learned
    seen: Seen | None  # images taught before; None: none is recognised
    digest: str  # SHA-256 of the version's file

    def plan(self, dataset: Dataset) -> Planned:
        return plan(self.version, dataset, isinstance(self.blank(), InShards))

    def reader(self, planned: Planned) -> Reader:
        """Return what reads the lesson in this process."""
        shared = read_shared(self.folder, self.version)
        return reader_of(self.version, self.extractor, self.blank, shared, planned.names, self.seen)


# makes what reads the shards of a lesson, here or elsewhere
Spread = Callable[[Learner, Planned], ReadShards]


def in_turn(learner: Learner, planned: Planned) -> ReadShards:
    """Return a function that reads shards one after another, in this process."""
    reader = learner.reader(planned)

    def read(shards: list[Shard], met: MetSoFar, bar: Bar) -> Iterator[ReadShard]:
        for shard in shards:
            note = f"shard {shard.number + 1} of {shard.of}" if shard.of > 1 else ""
            yield reader.read(shard, met, partial(bar.advance, 1, note))

    return read


class Ended(NamedTuple):
    """The end of a lesson; without new images there is none, and the method stays as it is."""

    report: LearnReport
    learner: Learner
    found: Gathered
    lesson: Lesson | None


def teach(
    dataset: Dataset, learner: Learner, options: dict[str, Any], spread: Spread, progress: Progress
) -> Ended:
    """Read the images, teach the method with them, and see how well it does."""
    start, version = time.perf_counter(), learner.version
    for line in in_few_lines(dataset.skipped):
        progress.say(line)
    planned = learner.plan(dataset)
    if planned.is_cut:
        learner, read = _going_on(learner, planned, spread, progress)
    else:
        read = in_turn(learner, planned)
    found = _gathered(planned, learner.opened(), read, progress)
    if planned.is_cut and 0 < len(found.rows_N) < FEW_NEW * len(planned.images):
        found = _new_ones_alone(found, learner.opened(), read, progress)
    for line in in_few_lines(found.skipped):
        progress.say(line)
    skipped = [str(one) for one in (*dataset.skipped, *found.skipped)]
    if not len(found.rows_N):
        learner.folder.remove_unfinished()
        if found.none_is_readable:
            raise none_readable(found.skipped)
        seconds = time.perf_counter() - start
        nothing = LearnReport(version.number, seconds, skipped=skipped, again=found.again)
        return Ended(nothing, learner, found, None)
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
    return Ended(report, learner, found, lesson)


def _going_on(
    learner: Learner, planned: Planned, spread: Spread, progress: Progress
) -> tuple[Learner, ReadShards]:
    """Take up the shards of this lesson that were read before, and spread the others."""
    seen = learner.seen
    of_all = lesson_hash(planned, learner.version, learner.digest, seen is not None)
    kept = Unfinished(learner.folder, of_all, "" if seen is None else seen.key)
    if seen is not None:
        learner = replace(learner, seen=replace(seen, key=kept.key))
    return learner, kept.kept_or_read(spread(learner, planned), progress)


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

    Among the many, too few of the new images would be tried.
    """
    found = _gathered(before.planned.only(before.rows_N), method, read, progress)
    found.skipped = before.skipped + found.skipped
    found.again, found.twice = before.again + found.again, before.twice + found.twice
    return found


def next_version(ended: Ended) -> tuple[Version, Arrays]:
    """Return the version that the lesson made, and the arrays of its method.

    Its objects are written: what the method has learned, and the hashes of the images.
    """
    report, learner, found, lesson = ended
    assert lesson is not None
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
    arrays = found.method.arrays()
    changes = put_arrays(folder, arrays, classes)
    if seen is not None:
        id_of = np.zeros(len(found.planned.names), np.int64)  # of each label
        id_of[found.numbers] = [one.id for one in classes]
        hashes = with_lesson(folder, version, seen, found.met.all(id_of))
        changes |= {"key": seen.key, "seen": hashes}
    after = version.next(
        {"did": "learn", "when": when, **report.record(), **lesson.options},
        learner.digest,
        next_id=version.next_id + len(lesson.names) - lesson.known,
        flip=lesson.options.get("flip", version.flip),
        numbers=found.method.numbers(),
        **changes,
    )
    return after, arrays

"""One lesson, taught and tested: what the method learns, and a report on how well."""

import time
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from dafuse.data.batches import Loader
from dafuse.engine.training import Trainer
from dafuse.heads.cosine import cosine_logits
from dafuse.product import estimates
from dafuse.product.calibration import with_held_out
from dafuse.product.few import Tried, try_few
from dafuse.product.lessons import Lesson
from dafuse.product.reports import LearnReport, Taught
from dafuse.product.state import Objects, State
from dafuse.product.teachable import TeachableDAF
from dafuse.product.unknown import find_threshold
from dafuse.product.version import Calibration, ClassRecord, Version, now
from dafuse.seeds import derive


@dataclass(frozen=True)
class Learned:
    state: State
    images: list[int]  # of each class, known and new
    tasks: int  # adapters trained so far
    calibration: Calibration
    report: LearnReport


def teach(lesson: Lesson, method: TeachableDAF, trainer: Trainer, version: Version) -> Learned:
    """Change the method by the lesson, then see how it fares."""
    start = time.perf_counter()
    before_KD, known = method.rows_CD, lesson.task.first
    method.teach(lesson.task, lesson.more)
    rows_CD, names = method.rows_CD, lesson.names

    logits_NC, labels_N = _held_out_logits(lesson, method, trainer)
    predicted_N = logits_NC.argmax(1)
    calibration = with_held_out(version.calibration, logits_NC, labels_N)

    seed = derive(version.seed, "estimate", version.number)
    generator = torch.Generator(trainer.device).manual_seed(seed)
    sampler = method.measured()
    threshold = find_threshold(sampler, method.images, rows_CD, generator)
    drawn_CnD = estimates.draw_like_images(sampler, method.images, generator)
    shares_CC = estimates.predicted_shares(drawn_CnD, rows_CD)
    held_out_CC = estimates.held_out_shares(predicted_N, labels_N, len(names))
    right = float((predicted_N == labels_N).float().mean()) if len(labels_N) else None
    report = LearnReport(
        version=version.number + 1,
        seconds=time.perf_counter() - start,
        classes=_taught(lesson, method.images, try_few(lesson, method, trainer)),
        held_out_accuracy=right,
        old_before=estimates.accuracy(drawn_CnD[:known], before_KD) if known else None,
        old_after=estimates.accuracy(drawn_CnD[:known], rows_CD) if known else None,
        alike=estimates.alike(names, known, shares_CC, held_out_CC),
        skipped=trainer.loader.skipped,
    )
    tasks = version.tasks + (1 if method.trains(lesson.task) else 0)
    calibration = replace(calibration, threshold=threshold)
    return Learned(method.state(), method.images, tasks, calibration, report)


def next_version(
    version: Version,
    digest: str,
    lesson: Lesson,
    loader: Loader,
    learned: Learned,
    objects: Objects,
) -> Version:
    """The version that the lesson made of this one, whose file has this hash."""
    when = now()
    classes = list(version.classes)
    for row in lesson.rows:
        pixels = loader.pixel_bytes(lesson.learned(row))  # a number is a byte there
        if row < lesson.task.first:
            known = classes[row]
            classes[row] = replace(known, pixels=known.pixels + pixels, updated=when)
        else:
            number = version.next_id + row - lesson.task.first
            classes.append(ClassRecord(number, lesson.names[row], 0, pixels, when, when, ""))
    return version.next(
        {"did": "learn", "when": when, **learned.report.record()},
        digest,
        tasks=learned.tasks,
        next_id=version.next_id + lesson.task.size,
        adapter=objects.adapter,
        classifier=objects.classifier,
        classes=[
            replace(record, images=images, statistics=statistics)
            for record, images, statistics in zip(
                classes, learned.images, objects.classes, strict=True
            )
        ],
        calibration=learned.calibration,
    )


def _held_out_logits(
    lesson: Lesson, method: TeachableDAF, trainer: Trainer
) -> tuple[Tensor, Tensor]:
    """Logits [N, C] and labels [N] of the images held out, of which there may be none."""
    if not len(lesson.held_out):
        return torch.zeros(0, len(lesson.names)), torch.zeros(0, dtype=torch.int64)
    feats_ND, labels_N = trainer.features(lesson.held_out, method.global_adapter)
    return cosine_logits(feats_ND, method.rows_CD), labels_N


def _taught(lesson: Lesson, images: list[int], few: dict[int, Tried]) -> list[Taught]:
    return [
        Taught(
            name=lesson.names[row],
            new=row >= lesson.task.first,
            images=len(lesson.learned(row)),
            held_out=int((lesson.held_out.labels == row).sum()),
            known_from=images[row],
            **asdict(few.get(row, Tried())),
        )
        for row in lesson.rows
    ]

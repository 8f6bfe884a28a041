"""Predictions on every test image seen so far, counted by task and by class."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dafuse.data.dataset import ImageSet
from dafuse.engine.ranks import Ranks
from dafuse.engine.trainer import Trainer
from dafuse.heads.arrays import check_finite
from dafuse.heads.confidence import calibration_error
from dafuse.methods.contract import Method
from dafuse.progress import Bar


@dataclass
class TaskEvaluation:
    correct: list[int]  # by task
    correct_then: list[int]  # by task, when only classes known after that task compete
    total: list[int]  # by task
    confusion: np.ndarray  # counts [C, C], rows true, columns predicted
    calibration_error: float | None  # of the softmax of the logits; None without images
    prediction: str  # the name of this way to predict, if the method has several
    others: dict[str, list[int]]  # by task, right answers of the method's other ways to predict


class PredictedClasses(NamedTuple):
    """The answers of one way to predict: tensors for a batch, arrays for all images."""

    predicted_N: Any
    confidence_N: Any  # probability of the predicted class
    predicted_then_N: Any  # the same among the classes known after the image's task


@torch.no_grad()
def evaluate(
    method: Method, trainer: Trainer, tests: Sequence[ImageSet], seen: int
) -> TaskEvaluation:
    """Take the arg-max over all seen classes for all seen test images, without task labels."""
    images, known_N = ImageSet.join(tests), _known_after(tests)
    answer = answered if trainer.shards is None else trainer.shards.answered
    with trainer.phase("evaluate", len(images), len(images)) as bar:
        by_way = answer(method, trainer, images, known_N, bar)
    edges = np.cumsum([0, *(len(test) for test in tests)])

    def correct(predicted_N: np.ndarray) -> list[int]:
        right = predicted_N == images.labels
        return [int(right[a:b].sum()) for a, b in pairwise(edges)]

    nothing = PredictedClasses(*np.zeros((3, 0), dtype=np.int64))
    first, *others = by_way or {"": nothing}
    answers = by_way.get(first, nothing)
    check_finite(answers.confidence_N, "the probabilities of the test images")
    confusion = np.bincount(images.labels * seen + answers.predicted_N, minlength=seen * seen)
    right_N = answers.predicted_N == images.labels
    return TaskEvaluation(
        correct(answers.predicted_N),
        correct(answers.predicted_then_N),
        total=[len(test) for test in tests],
        confusion=confusion.reshape(seen, seen),
        calibration_error=calibration_error(answers.confidence_N, right_N) if by_way else None,
        prediction=first,
        others={name: correct(by_way[name].predicted_N) for name in others},
    )


@torch.no_grad()
def answered(
    method: Method, trainer: Trainer, images: ImageSet, known_N: Tensor, bar: Bar
) -> dict[str, PredictedClasses]:
    """Return the answers of each way to predict, given how many classes each image's time knew."""
    ranks, size = trainer.ranks, trainer.forward.at_once
    known_N, done = known_N[ranks.rows(len(images), size)].to(trainer.device), 0
    parts: dict[str, list[PredictedClasses]] = {}
    for batch, _ in trainer.dealt(images, bar, size):
        known_B = known_N[done : done + len(batch)]
        done += len(batch)
        for name, logits_BC in method.predictions(batch).items():
            parts.setdefault(name, []).append(_answers(logits_BC, known_B))
    return {
        name: _joined(parts.get(name, []), ranks, len(images), size)
        for name in ranks.broadcast(list(parts))
    }


def _known_after(tests: Sequence[ImageSet]) -> Tensor:
    """Return, for each image, how many classes were known after its task.

    Classes are numbered in the order in which they appear.
    """
    known = np.maximum.accumulate([test.labels.max(initial=-1) + 1 for test in tests])
    return torch.from_numpy(np.repeat(known, [len(test) for test in tests]))


def _answers(logits_BC: Tensor, known_B: Tensor) -> PredictedClasses:
    """Compute answers on the device, without waiting for it."""
    logits_BC = logits_BC.float()
    later_BC = torch.arange(logits_BC.shape[1], device=known_B.device) >= known_B[:, None]
    then_BC = logits_BC.masked_fill(later_BC.to(logits_BC.device), -torch.inf)
    return PredictedClasses(logits_BC.argmax(1), logits_BC.softmax(1).amax(1), then_BC.argmax(1))


def _joined(
    parts: list[PredictedClasses], ranks: Ranks, images: int, size: int
) -> PredictedClasses:
    """Join the answers of all batches, of all processes, into arrays."""
    kinds = list(zip(*parts, strict=True)) or [()] * len(PredictedClasses._fields)
    return PredictedClasses(*(ranks.in_order(one, images, size).cpu().numpy() for one in kinds))

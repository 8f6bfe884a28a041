"""Predictions on every test image seen so far, counted by task and by class."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dafuse.data.dataset import ImageSet
from dafuse.engine.calibration import calibration_error
from dafuse.engine.training import Trainer
from dafuse.methods.contract import Method


@dataclass
class Evaluation:
    correct: list[int]  # by task
    total: list[int]  # by task
    confusion: np.ndarray  # counts [C, C], rows true, columns predicted
    calibration_error: float | None  # of the softmax of the logits; none without images
    prediction: str  # the name of this way to predict, where the method has several
    others: dict[str, list[int]]  # correct by task, of the method's other ways to predict


@torch.no_grad()
def evaluate(method: Method, trainer: Trainer, tests: Sequence[ImageSet], seen: int) -> Evaluation:
    """Arg-max over all seen classes for all seen test images: no task is told."""
    images = ImageSet.join(tests)
    parts: dict[str, list[Tensor]] = {}
    sure: dict[str, list[Tensor]] = {}
    with trainer.phase("evaluate", len(images), len(images)) as bar:
        for batch, _ in bar.over(trainer.test_batches(images)):
            for name, logits in method.predictions(batch).items():
                parts.setdefault(name, []).append(logits.argmax(1).cpu())
                sure.setdefault(name, []).append(logits.float().softmax(1).amax(1).cpu())
    edges = np.cumsum([0, *(len(test) for test in tests)])

    def correct(predicted: np.ndarray) -> list[int]:
        right = predicted == images.labels
        return [int(right[a:b].sum()) for a, b in pairwise(edges)]

    found = {name: torch.cat(part).numpy() for name, part in parts.items()}
    first, *others = found or {"": np.zeros(0, dtype=np.int64)}
    predicted = found.get(first, np.zeros(0, dtype=np.int64))
    confusion = np.bincount(images.labels * seen + predicted, minlength=seen * seen)
    return Evaluation(
        correct(predicted),
        total=[len(test) for test in tests],
        confusion=confusion.reshape(seen, seen),
        calibration_error=calibration_error(
            torch.cat(sure[first]).numpy(), predicted == images.labels
        )
        if sure
        else None,
        prediction=first,
        others={name: correct(found[name]) for name in others},
    )

"""Predictions on every test image seen so far, counted by task and by class."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from dafuse.data.dataset import ImageSet
from dafuse.engine.training import Trainer
from dafuse.methods.contract import Method


@dataclass
class Evaluation:
    correct: list[int]  # by task
    total: list[int]  # by task
    confusion: np.ndarray  # counts [C, C], rows true, columns predicted


@torch.no_grad()
def evaluate(method: Method, trainer: Trainer, tests: Sequence[ImageSet], seen: int) -> Evaluation:
    """Arg-max over all seen classes for all seen test images: no task is told."""
    images = ImageSet.join(tests)
    parts = [torch.zeros(0, dtype=torch.int64)]
    with trainer.phase("evaluate", len(images), len(images)) as bar:
        for batch, _ in bar.over(trainer.test_batches(images)):
            parts.append(method.logits(batch).argmax(1).cpu())
    predicted = torch.cat(parts).numpy()
    right = predicted == images.labels
    edges = np.cumsum([0, *(len(test) for test in tests)])
    confusion = np.bincount(images.labels * seen + predicted, minlength=seen * seen)
    return Evaluation(
        correct=[int(right[a:b].sum()) for a, b in pairwise(edges)],
        total=[len(test) for test in tests],
        confusion=confusion.reshape(seen, seen),
    )

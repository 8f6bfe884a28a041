"""Classes of few images: what the images themselves tell of how well such a class does.

Nothing can be held out of two images. So each is left out in turn: is it nearer to the mean of the
others of its class than to the mean of every other class? That is a hard test, for the class has
one image less in it than it was learned from, and its rows are not aligned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.engine.training import Trainer
from dafuse.heads.cosine import SCALE, cosine_logits
from dafuse.product.lessons import Lesson
from dafuse.product.reports import FEW
from dafuse.product.teachable import TeachableDAF


@dataclass(frozen=True)
class Tried:
    """Images of a class that were left out in turn, or what it looks like where none can be."""

    left_out: int = 0
    found: int = 0  # of them
    resembles: str | None = None  # the class most like it


def try_few(lesson: Lesson, method: TeachableDAF, trainer: Trainer) -> dict[int, Tried]:
    """Of the rows of this lesson's classes of few images."""
    few = [row for row in lesson.rows if method.images[row] < FEW]
    means_CD = method.classes.tensors["mean"].to(trainer.device).float()
    if len(means_CD) == 1:  # there is nothing to take its images for
        return {}
    alone = [row for row in few if method.images[row] == 1]
    tried = {row: Tried(resembles=lesson.names[_most_like(means_CD, row)]) for row in alone}
    for images in (lesson.more, lesson.task.train):
        found_of = _found(images, [row for row in few if row not in alone], method, trainer)
        tried |= {row: Tried(len(found), sum(found)) for row, found in found_of.items()}
    return tried


def _found(
    images: ImageSet, rows: list[int], method: TeachableDAF, trainer: Trainer
) -> dict[int, list[bool]]:
    """For each row that has images here, whether each of them is found again without itself."""
    chosen = images.take(np.isin(images.labels, rows))
    if not len(chosen):
        return {}
    feats_ND, labels_N = trainer.features(chosen, method.global_adapter)
    means_CD = method.classes.tensors["mean"].to(feats_ND)
    right_N = found_without(feats_ND, labels_N, means_CD, method.images)
    return {row: right_N[labels_N == row].tolist() for row in labels_N.unique().tolist()}


def found_without(
    feats_ND: Tensor, labels_N: Tensor, means_CD: Tensor, images: Sequence[int]
) -> Tensor:
    """[N]: whether each is nearest to its class's mean, from which it is taken out before.

    ``images``: how many each of the means is of, at least two where one is taken out.
    """
    counts_N1 = torch.tensor(images, device=feats_ND.device)[labels_N, None]
    others_ND = (counts_N1 * means_CD[labels_N] - feats_ND) / (counts_N1 - 1)
    own_N1 = SCALE * F.cosine_similarity(feats_ND, others_ND)[:, None]
    logits_NC = cosine_logits(feats_ND, means_CD).scatter(1, labels_N[:, None], own_N1)
    return logits_NC.argmax(1) == labels_N


def _most_like(means_CD: Tensor, row: int) -> int:
    alike_C = F.cosine_similarity(means_CD, means_CD[row], dim=1)
    alike_C[row] = -torch.inf
    return int(alike_C.argmax())

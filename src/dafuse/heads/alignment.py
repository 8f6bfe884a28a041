"""Classifier alignment: train the rows of all classes on features drawn from their Gaussians.

Each epoch draws ``samples`` features for every seen class, old and new, in one batched product,
shuffles them, and takes one SGD step for each ``samples`` of them; the rate falls to zero along a
cosine. There are thousands of tiny steps, so the gradients of the losses are written out (that of
the linear head is in `heads.linear`), and nothing in a step keeps it from being replayed on a GPU.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.heads.cosine import SCALE
from dafuse.heads.gaussians import Sampler
from dafuse.heads.linear import softmax_error
from dafuse.progress import Bar

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]  # rows [C, E], features [N, D], labels [N]
Step = Callable[..., Tensor]  # features [N, D], labels [N] -> the rate it was taken with


def cosine_gradient(rows_CD: Tensor, feats_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy of the cosine head with respect to its rows.

    With P the softmax of the logits, Y the one-hot labels and U the features at length 1, the
    gradient at the rows' directions is G = SCALE (P - Y)ᵀ U / N; a row's own gradient is the
    part of it that is orthogonal to the row, divided by the row's length.
    """
    units_ND = F.normalize(feats_ND, dim=1)
    lengths_C1 = rows_CD.norm(dim=1, keepdim=True).clamp(min=1e-12)
    directions_CD = rows_CD / lengths_C1
    error_NC = softmax_error(SCALE * units_ND @ directions_CD.T, labels_N)
    toward_CD = (SCALE / len(labels_N)) * error_NC.T @ units_ND
    along_C1 = (toward_CD * directions_CD).sum(1, keepdim=True)
    return (toward_CD - along_C1 * directions_CD) / lengths_C1


@torch.no_grad()
def align(
    rows_CD: Tensor,
    sampler: Sampler,
    generator: torch.Generator,  # on the device of the sampler
    epochs: int = 30,
    samples: int = 240,
    lr: float = 0.005,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    gradient: Gradient = cosine_gradient,
    period: int | None = None,  # epochs in which the rate falls to zero, before it rises again
    bar: Bar | None = None,
    faster: Callable[[Step], Step] | None = None,  # makes a step another that does the same
) -> Tensor:
    """The aligned rows of a head with this gradient; those passed in stay as they are."""
    rows_CD = rows_CD.clone()
    velocity_CD = torch.zeros_like(rows_CD)
    rate = torch.zeros((), device=rows_CD.device)  # there, so that a replayed step can read it
    labels = torch.arange(len(rows_CD), device=rows_CD.device).repeat_interleave(samples)

    def step(feats_ND: Tensor, labels_N: Tensor) -> Tensor:
        velocity_CD.mul_(momentum).add_(gradient(rows_CD, feats_ND, labels_N))
        velocity_CD.add_(rows_CD, alpha=weight_decay)
        rows_CD.addcmul_(velocity_CD, rate, value=-1)
        return rate

    take_step = step if faster is None else faster(step)
    for epoch in range(epochs):
        rate.fill_(lr * (1 + math.cos(math.pi * epoch / (period or epochs))) / 2)
        shuffle = torch.randperm(len(labels), generator=generator, device=labels.device)
        drawn = sampler.draw(samples, generator).flatten(0, 1)[shuffle]
        batches = zip(drawn.split(samples), labels[shuffle].split(samples), strict=True)
        for feats_ND, labels_N in batches:
            take_step(feats_ND, labels_N)
        if bar is not None:
            bar.advance()
    return rows_CD


def shrink_with_age(task_of_C: Tensor) -> Tensor:
    """Factors [C] for class means: 1 for the newest task, towards 0.9 for old ones (from SLCA).

    ``task_of`` is the index of the task, from 0, in which a class was learned.
    """
    tasks = task_of_C.max() + 1
    return 0.9 + 0.1 * (task_of_C + 1) / tasks

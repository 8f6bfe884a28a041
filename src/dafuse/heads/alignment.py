"""Classifier alignment: train all class weights on features drawn from the class Gaussians.

Each epoch draws ``samples`` features for every seen class, old and new, in one batched product,
shuffles them, and takes one SGD step for each ``samples`` of them. The learning rate falls to zero
along a cosine. There are thousands of tiny steps, so the gradients of the losses are written out
(`heads.linear` has that of the linear head), and every step can be captured in a CUDA graph.
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

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]  # class weights, features [N, D], labels [N]
Step = Callable[..., Tensor]  # features [N, D], labels [N] -> the step's learning rate


def cosine_gradient(weights_CD: Tensor, feats_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return the gradient of the cosine head's mean cross-entropy at its class weights.

    With P the softmax of the logits, Y the one-hot labels and U the features at length 1, the
    gradient at the directions of the class weights is G = SCALE (P - Y)ᵀ U / N. The gradient at
    the weights of a class is the part of G orthogonal to them, divided by their length.
    """
    units_ND = F.normalize(feats_ND, dim=1)
    lengths_C1 = weights_CD.norm(dim=1, keepdim=True).clamp(min=1e-12)
    directions_CD = weights_CD / lengths_C1
    error_NC = softmax_error(SCALE * units_ND @ directions_CD.T, labels_N)
    toward_CD = (SCALE / len(labels_N)) * error_NC.T @ units_ND
    along_C1 = (toward_CD * directions_CD).sum(1, keepdim=True)
    return (toward_CD - along_C1 * directions_CD) / lengths_C1


@torch.no_grad()
def align(
    weights_CD: Tensor,
    sampler: Sampler,
    generator: torch.Generator,  # on the sampler's device
    epochs: int = 30,
    samples: int = 240,
    lr: float = 0.005,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    gradient: Gradient = cosine_gradient,
    period: int | None = None,  # epochs until the learning rate is zero; then it rises again
    bar: Bar | None = None,
    faster: Callable[[Step], Step] | None = None,  # returns a faster step that does the same
) -> Tensor:
    """Return the aligned class weights of a head with this gradient; the given ones stay."""
    weights_CD = weights_CD.clone()
    velocity_CD = torch.zeros_like(weights_CD)
    rate = torch.zeros((), device=weights_CD.device)  # a tensor, which a CUDA graph reads
    labels = torch.arange(len(weights_CD), device=weights_CD.device).repeat_interleave(samples)

    def step(feats_ND: Tensor, labels_N: Tensor) -> Tensor:
        velocity_CD.mul_(momentum).add_(gradient(weights_CD, feats_ND, labels_N))
        velocity_CD.add_(weights_CD, alpha=weight_decay)
        weights_CD.addcmul_(velocity_CD, rate, value=-1)
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
    return weights_CD


def shrink_with_age(task_of_C: Tensor) -> Tensor:
    """Return factors [C] for class means: 1 for the newest task, towards 0.9 for old ones (SLCA).

    ``task_of`` is the index of the task, from 0, in which a class was learned.
    """
    tasks = task_of_C.max() + 1
    return 0.9 + 0.1 * (task_of_C + 1) / tasks

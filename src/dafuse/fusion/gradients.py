"""The mean gradient and the Fisher diagonal, with all per-sample gradients from one backward pass.

Each sample has its own copy of the parameters. Its loss depends on that copy alone, so the gradient
of the *summed* loss holds the gradients of all samples side by side, without a loop.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# images, labels -> losses [B], and by name the copies of the parameters [B, ...]
LossOfEach = Callable[[Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


GRADIENT, SQUARES = "gradient ", "squares "  # before the names of sums


@dataclass
class Curvature:
    """Gradient, Fisher diagonal and loss at θ_t, which fusion needs (Algorithm 1, line 4)."""

    gradient: dict[str, Tensor]  # L'(θ_t): mean over samples
    fisher: dict[str, Tensor]  # F(θ_t): mean of squared gradients
    loss: float  # mean over samples: the empirical risk


def gradient_and_fisher(
    loss: LossOfEach,
    batches: Iterable[tuple[Tensor, Tensor]],
    per_sample: bool = True,
    add_up: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> Curvature:
    """Compute all three in one pass over the data; the empirical Fisher uses the true labels.

    ``per_sample=False`` squares each batch's mean gradient instead, the common shortcut. Where the
    batches are a part of the data, ``add_up`` adds the sums of the other parts.
    """
    summed: dict[str, Tensor] = {}
    squared: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    samples = terms = 0
    for images, labels in batches:
        losses_B, own = loss(images, labels)
        count = len(labels)
        gradients = torch.autograd.grad(losses_B.sum(), list(own.values()))
        for name, gradient_B in zip(own, gradients, strict=True):
            total = gradient_B.sum(0)
            squares = gradient_B.square_().sum(0) if per_sample else (total / count).square()
            summed[name] = summed.get(name, 0) + total
            squared[name] = squared.get(name, 0) + squares
        losses.append(losses_B.detach().float().sum())
        samples += count
        terms += count if per_sample else 1
    own = {f"{GRADIENT}{name}": total for name, total in summed.items()}
    own |= {f"{SQUARES}{name}": total for name, total in squared.items()}
    if losses:  # a part may have no batch
        own |= {"loss": torch.stack(losses).sum(), "counts": torch.tensor([samples, terms])}
    sums = add_up(own)
    samples, terms = sums["counts"].tolist()
    return Curvature(
        gradient={name: total / samples for name, total in _under(GRADIENT, sums)},
        fisher={name: total / terms for name, total in _under(SQUARES, sums)},
        loss=float(sums["loss"]) / samples,
    )


def _under(prefix: str, sums: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, total in sums.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), total

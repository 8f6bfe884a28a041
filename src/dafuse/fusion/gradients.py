"""The mean gradient and the Fisher diagonal, every sample's own gradient from one backward pass.

For a linear map, the gradient of sample b's loss with respect to the weight is Σ_n δ_bn a_bnᵀ,
where a_bn are the map's inputs and δ_bn the gradients at its outputs. One backward pass of the
*summed* loss gives δ for all samples at once, so no loop over samples is needed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# A linear map: name, layer, inputs [B, N, I], and a tensor [B, N, O] that stands for its output:
# the gradient with respect to it is the gradient at the output.
Watched = tuple[str, int, Tensor, Tensor]
WatchedLoss = Callable[
    [Tensor, Tensor], tuple[Tensor, list[Watched]]
]  # images, labels -> losses [B]


@dataclass
class Curvature:
    """What fusion needs to know of the loss at θ_t (Algorithm 1, line 4)."""

    gradient: dict[str, Tensor]  # L'(θ_t): mean over samples
    fisher: dict[str, Tensor]  # F(θ_t): mean of squared gradients
    loss: float  # mean over samples: the empirical risk


def gradient_and_fisher(
    loss: WatchedLoss, batches: Iterable[tuple[Tensor, Tensor]], per_sample: bool = True
) -> Curvature:
    """One pass over the data. The empirical Fisher: true labels, squared gradients averaged.

    ``per_sample=False`` squares each batch's mean gradient instead, the common shortcut.
    """
    summed: dict[str, list[Tensor]] = {}
    squared: dict[str, list[Tensor]] = {}
    losses: list[Tensor] = []
    samples = terms = 0
    for images, labels in batches:
        losses_B, watched = loss(images, labels)
        deltas = torch.autograd.grad(losses_B.sum(), [output for *_, output in watched])
        count = len(labels)
        for (name, layer, inputs, _), delta in zip(watched, deltas, strict=True):
            weight_BOI = delta.float().transpose(1, 2) @ inputs.detach().float()
            bias_BO = delta.float().sum(1)
            for key, gradient in ((f"{name}.weight", weight_BOI), (f"{name}.bias", bias_BO)):
                total = gradient.sum(0)
                squares = gradient.square().sum(0) if per_sample else (total / count).square()
                _accumulate(summed, key, layer, total)
                _accumulate(squared, key, layer, squares)
        losses.append(losses_B.detach().float().sum())
        samples += count
        terms += count if per_sample else 1
    return Curvature(
        gradient={key: torch.stack(layers) / samples for key, layers in summed.items()},
        fisher={key: torch.stack(layers) / terms for key, layers in squared.items()},
        loss=float(torch.stack(losses).sum()) / samples,
    )


def _accumulate(sums: dict[str, list[Tensor]], key: str, layer: int, value: Tensor) -> None:
    layers = sums.setdefault(key, [])
    if layer == len(layers):
        layers.append(value)
    else:
        layers[layer] = layers[layer] + value

"""Measures of how well one description of a loss agrees with another.

Two diagonals (such as Fisher and Hessian) are compared entry by entry. A parabola describes the
loss along a step Δ from θ:

    L(θ + s Δ)  ~  L(θ) + s g·Δ + s²/2 Δ·C Δ        C: a diagonal, or the Hessian itself
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
EVERYTHING = "all"  # the name of the comparison of all tensors together


def agreements(these: Tensors, those: Tensors) -> dict[str, dict[str, float]]:
    """Return the `agreement` of all tensors together, and of each."""
    keys = list(those)
    together = (torch.cat([t[key].flatten().cpu() for key in keys]) for t in (these, those))
    return {EVERYTHING: agreement(*together)} | {k: agreement(these[k], those[k]) for k in keys}


def agreement(these: Tensor, those: Tensor) -> dict[str, float]:
    """Compare the first tensor with the second; what is undefined is NaN."""
    a, b = (t.detach().flatten().cpu().double() for t in (these, those))
    return {
        "entries": len(a),
        "rank_correlation": _cosine(_centred_ranks(a), _centred_ranks(b)),
        "cosine": _cosine(a, b),
        "ratio_of_sums": float(a.sum() / b.sum()),
        "negative": float((b < 0).double().mean()),  # share of entries of the second tensor
    }


def dot(these: Tensors, those: Tensors) -> float:
    """Return the inner product over all tensors, summed in double precision."""
    return float(sum((these[k].cpu().double() * those[k].cpu().double()).sum() for k in those))


def bend(diagonal: Tensors, step: Tensors) -> float:
    """Return Δ·C Δ for a diagonal C."""
    return dot(diagonal, {key: part.cpu().double().square() for key, part in step.items()})


def parabola(loss: float, slope: float, bend: float, shares: Sequence[float]) -> list[float]:
    """Return the second-order model at shares s of the step: slope is g·Δ, bend is Δ·C Δ."""
    return [loss + share * slope + share**2 / 2 * bend for share in shares]


def _centred_ranks(values_N: Tensor) -> Tensor:
    """Return the ranks minus their mean; equal values share the mean of their ranks."""
    _, group_N, sizes = values_N.unique(return_inverse=True, return_counts=True)
    ranks_N = (sizes.cumsum(0) - (sizes - 1) / 2).double()[group_N]
    return ranks_N - ranks_N.mean()


def _cosine(a_N: Tensor, b_N: Tensor) -> float:
    return float(a_N @ b_N / (a_N.norm() * b_N.norm()))

"""The diagnosis of one fusion: numbers to read, save and draw."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dafuse.fusion.gradients import Curvature
from dafuse.fusion.rule import (
    BETA_MAX,
    BETA_MIN,
    displacement,
    squared_distance,
    stages,
    values_of_layers,
)

Tensors = Mapping[str, Tensor]
QUANTILES = (5, 25, 50, 75, 95)


def movement(
    fused: Tensors, task: Tensors, init: Tensors, previous: Tensors, loss: float | None = None
) -> dict[str, Any]:
    """Return how far the global adapter moved, and two measured distances of Theorem 1's bound.

    The KL terms of the bound need distributions. For single adapters they are measured by squared
    distances: of the task adapter from its initialisation, and of the global adapter from the
    previous one. The third term, the empirical risk, is the task's mean ``loss``.
    """
    moved = squared_distance(fused, previous)
    size = squared_distance(previous, {k: torch.zeros_like(v) for k, v in previous.items()})
    risk = {} if loss is None else {"empirical_risk": loss}
    return {
        "moved": {"distance": moved**0.5, "relative": (moved / size) ** 0.5 if size else 0.0},
        "bound": {
            **risk,
            "init_sq_distance": squared_distance(task, init),
            "global_sq_distance": moved,
        },
    }


def diagnose(
    beta: Tensors,
    at_task: Curvature,
    fused: Tensors,
    task: Tensors,
    init: Tensors,
    previous: Tensors,
) -> dict[str, Any]:
    """Return the movement, β by layer, the share of β clipped at each end, |g/D| and the bound."""
    layers = [row for names in stages(beta) for row in values_of_layers(beta, names).cpu().double()]
    values = torch.cat(layers)
    values = values[~values.isnan()]
    distance = displacement(task, init, previous)
    slope = torch.cat([(at_task.gradient[k] / d)[d != 0].abs() for k, d in distance.items()])
    return movement(fused, task, init, previous, at_task.loss) | {
        "beta": [_layer(layer, row[~row.isnan()]) for layer, row in enumerate(layers)],
        "clipped_low": _share(values <= BETA_MIN * (1 + 1e-5)),
        "clipped_high": _share(values >= BETA_MAX * (1 - 1e-5)),
        "mean_abs_gradient_over_displacement": float(slope.mean()) if len(slope) else 0.0,
        "median_abs_gradient_over_displacement": float(slope.median()) if len(slope) else 0.0,
    }


def _share(mask: Tensor) -> float:
    return float(mask.double().mean()) if len(mask) else 0.0


def _layer(layer: int, beta_K: Tensor) -> dict[str, Any]:
    if not len(beta_K):  # nothing moved in this layer
        return {"layer": layer, "mean": None, "quantiles": {}}
    points = torch.quantile(beta_K, torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    return {
        "layer": layer,
        "mean": float(beta_K.mean()),
        "quantiles": {str(q): float(v) for q, v in zip(QUANTILES, points, strict=True)},
    }

"""The equations of Dynamical Adapter Fusion (arXiv 2601.21341) as functions of tensors.

Symbols: θ_t is the trained task adapter, θ_p its initialisation, θ* the global adapter, g the mean
gradient and F the Fisher diagonal of the task's loss at θ_t. The displacement

    D = θ_p + θ*_{t-1} - 2 θ_t

is the direction in which θ_t is pulled back: θ*_t = θ_t + β D (Eq. 3 rewritten).
All functions act element by element on dicts of tensors with the same keys and shapes.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Adapter = dict[str, Tensor]

BETA_MIN, BETA_MAX = 0.001, 0.499  # Section 3.4: "we clip β_t to [0.001, 0.499]"
SCOPES = ("global", "layer", "tensor")


def displacement(
    task: Tensors, init: Tensors, previous: Tensors, gamma: float = 0.5
) -> dict[str, Tensor]:
    """Return D = 2γ θ_p + 2(1-γ) θ*_{t-1} - 2 θ_t. With γ = 1/2 it is the paper's D."""
    return {k: 2 * gamma * init[k] + 2 * (1 - gamma) * previous[k] - 2 * task[k] for k in task}


def fisher_ratio(fisher: Tensors, scope: str = "global") -> dict[str, Tensor]:
    """Return r = (F - F_min) / (mean F - F_min), the bracket of Eq. 13; its mean is 1.

    The paper says "minimum and mean values of F" without saying over what: ``global`` (all
    entries of the adapter, the literal reading), each ``layer``, or each ``tensor`` of a layer.
    A constant F ranks no entry above another: r = 1. An F of zeros is no evidence: r = 0.
    """
    if scope == "global":
        everything = torch.cat([f.flatten() for f in fisher.values()])
        low, mean = everything.min(), everything.mean()
        return {k: _ratio(f, low, mean) for k, f in fisher.items()}
    if scope == "layer":
        ratio = {}
        for names in stages(fisher):
            layers_LK = values_of_layers(fisher, names)
            low_L, mean_L = layers_LK.amin(1), layers_LK.mean(1)
            for k in names:
                ratio[k] = _ratio(fisher[k], _like(low_L, fisher[k]), _like(mean_L, fisher[k]))
        return ratio
    if scope == "tensor":
        flat = {k: f.flatten(1) for k, f in fisher.items()}
        return {
            k: _ratio(f, _like(flat[k].amin(1), f), _like(flat[k].mean(1), f))
            for k, f in fisher.items()
        }
    raise ValueError(f"fisher_scope must be one of {SCOPES}, not {scope!r}")


def pull(
    distance: Tensors, ratio: Tensors, gradient: Tensors | None, alpha: float
) -> dict[str, Tensor]:
    """Return β D for the clipped β of Eq. 14, without dividing by D.

    β = (1 - g/D) / (α r + 2) gives β D = (D - g) / (α r + 2), and clipping β is clamping β D
    between 0.001 D and 0.499 D. The objective is convex in β, so this is its exact minimiser
    within the box. Where D = 0, the fused value is θ_t for every β.
    """
    pulled = {}
    for k, d in distance.items():
        free = d - gradient[k] if gradient is not None else d
        free = free / (alpha * ratio[k] + 2)
        ends = BETA_MIN * d, BETA_MAX * d
        pulled[k] = free.clamp(torch.minimum(*ends), torch.maximum(*ends))
    return pulled


def coefficient(distance: Tensors, pulled: Tensors) -> dict[str, Tensor]:
    """Return β itself, for the diagnosis: pulled / D, and NaN where D = 0."""
    return {k: torch.where(d == 0, torch.nan, pulled[k] / d) for k, d in distance.items()}


def fuse(
    task: Tensors,
    init: Tensors,
    previous: Tensors,
    fisher: Tensors,
    gradient: Tensors | None,
    alpha: float = 1.25,
    gamma: float = 0.5,
    gamma_consistent: bool = False,
    fisher_scope: str = "global",
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return θ*_t = 2γ β θ_p + 2(1-γ) β θ*_{t-1} + (1 - 2β) θ_t, and β (Eq. 3 for γ = 1/2).

    Read literally, the paper's study of γ keeps the β of γ = 1/2; ``gamma_consistent`` derives β
    from the D of that γ instead.
    """
    ratio = fisher_ratio(fisher, fisher_scope)
    base = displacement(task, init, previous, gamma if gamma_consistent else 0.5)
    pulled = pull(base, ratio, gradient, alpha)
    beta = coefficient(base, pulled)
    if gamma != 0.5 and not gamma_consistent:
        toward = displacement(task, init, previous, gamma)
        pulled = {k: torch.nan_to_num(beta[k], nan=BETA_MAX) * d for k, d in toward.items()}
    return {k: task[k] + pulled[k] for k in task}, beta


def fuse_fixed(
    task: Tensors, init: Tensors, previous: Tensors, beta: float = 1 / 3
) -> dict[str, Tensor]:
    """Return Eq. 3 with one β for all entries: 1/3 is the paper's static fusion, equal thirds."""
    return {k: task[k] + beta * d for k, d in displacement(task, init, previous).items()}


# rules that measure nothing: θ_t, θ_p, θ*_{t-1}, θ_avg -> θ*_t
FIXED_RULES: dict[str, Callable[[Adapter, Adapter, Adapter, Adapter], Adapter]] = {
    "static": lambda task, init, previous, mean: fuse_fixed(task, init, previous),
    "last": lambda task, init, previous, mean: task,
    "mean": lambda task, init, previous, mean: mean,
}


NEED_MEAN = frozenset({"mean"})  # of those, the ones that use θ_avg: it is kept between tasks


def running_mean(mean: Tensors | None, task: Tensors, number: int) -> dict[str, Tensor]:
    """Return the mean of the task adapters θ_1..θ_t, given that of θ_1..θ_{t-1}; t = ``number``.

    This is Eq. 16.
    """
    if mean is None or number == 1:
        return {k: v.clone() for k, v in task.items()}
    return {k: mean[k] * ((number - 1) / number) + task[k] / number for k in task}


def squared_distance(a: Tensors, b: Tensors) -> float:
    """Return ‖a - b‖², summed in double precision."""
    return float(sum((a[k].cpu().double() - b[k].cpu().double()).square().sum() for k in a))


def stages(tensors: Tensors) -> list[list[str]]:
    """Group the tensors' names by stage: names of one stage begin alike but for two words.

    A network whose blocks all have one width has one stage. The first axis of its tensors counts
    the blocks.
    """
    found: dict[str, list[str]] = {}
    for name in tensors:
        found.setdefault(".".join(name.split(".")[:-2]), []).append(name)
    return list(found.values())


def values_of_layers(tensors: Tensors, names: list[str]) -> Tensor:
    """Return all numbers of a stage's tensors, a row for each layer [L, K]."""
    return torch.cat([tensors[k].reshape(len(tensors[k]), -1) for k in names], dim=1)


def _ratio(fisher: Tensor, low: Tensor, mean: Tensor) -> Tensor:
    spread = mean - low
    flat = spread <= 1e-12 * mean.clamp(min=torch.finfo(mean.dtype).tiny)
    nothing_known = torch.where(mean > 0, 1.0, 0.0).to(fisher.dtype)
    return torch.where(flat, nothing_known, (fisher - low) / torch.where(flat, 1.0, spread))


def _like(values_L: Tensor, target: Tensor) -> Tensor:
    return values_L.reshape(-1, *[1] * (target.dim() - 1))

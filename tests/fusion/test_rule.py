"""The paper's equations against brute force, and their edge cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dafuse.fusion.diagnosis import diagnose
from dafuse.fusion.gradients import Curvature
from dafuse.fusion.rule import (
    BETA_MAX,
    BETA_MIN,
    FIXED_RULES,
    NEED_MEAN,
    coefficient,
    displacement,
    fisher_ratio,
    fuse,
    fuse_fixed,
    pull,
    running_mean,
    squared_distance,
)

Tensors = dict[str, Tensor]
seeds = st.integers(0, 2**31)


def adapters(seed: int, count: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensors]:
    generator = torch.Generator().manual_seed(seed)

    def one() -> Tensors:
        shapes = {"down.weight": (2, 3, 4), "down.bias": (2, 3), "up.weight": (2, 4, 3)}
        return {k: torch.randn(s, generator=generator, dtype=dtype) for k, s in shapes.items()}

    return [one() for _ in range(count)]


def positive(tensors: Tensors) -> Tensors:
    return {k: v.square() * v.abs().exp() for k, v in tensors.items()}


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([v.flatten() for v in tensors.values()])


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(0.01, 10), st.sampled_from(["global", "layer", "tensor"]))
def test_beta_minimises_the_papers_objective(seed: int, alpha: float, scope: str) -> None:
    """β against a grid search of J(β) = g β D + ½ L'' β² D² + ½ (β-1)² D² within the box."""
    task, init, previous, g, f = adapters(seed, 5)
    fisher = positive(f)
    _, beta = fuse(task, init, previous, fisher, g, alpha, fisher_scope=scope)
    distance, ratio = displacement(task, init, previous), fisher_ratio(fisher, scope)
    grid = torch.linspace(BETA_MIN, BETA_MAX, 4001, dtype=torch.float64)[:, None]
    d, hessian, slope = flat(distance)[None], alpha * flat(ratio)[None] + 1, flat(g)[None]
    objective = slope * grid * d + hessian * (grid * d) ** 2 / 2 + ((grid - 1) * d) ** 2 / 2
    best = grid[objective.argmin(0), 0]
    assert torch.allclose(flat(beta), best, atol=2e-4)


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(0.01, 10))
def test_division_free_form_is_equation_14(seed: int, alpha: float) -> None:
    task, init, previous, g, f = adapters(seed, 5)
    fisher = positive(f)
    fused, beta = fuse(task, init, previous, fisher, g, alpha)
    everything = flat(fisher)
    low, mean = everything.min(), everything.mean()
    for k in task:
        d = init[k] + previous[k] - 2 * task[k]
        numerator = (mean - low) * (d - g[k])
        denominator = d * (alpha * fisher[k] - alpha * low + 2 * mean - 2 * low)
        literal = (numerator / denominator).clamp(BETA_MIN, BETA_MAX)
        assert torch.allclose(beta[k], literal, atol=1e-9)
        by_hand = literal * init[k] + literal * previous[k] + (1 - 2 * literal) * task[k]
        assert torch.allclose(fused[k], by_hand, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(1e-3, 1e3))
def test_fused_lies_between_task_and_the_middle_of_the_past(seed: int, alpha: float) -> None:
    task, init, previous, g, f = adapters(seed, 5)
    fused, beta = fuse(task, init, previous, positive(f), g, alpha)
    assert flat(beta).min() >= BETA_MIN - 1e-12
    assert flat(beta).max() <= BETA_MAX + 1e-12
    for k in task:
        middle = (init[k] + previous[k]) / 2
        way = (fused[k] - task[k]) / (middle - task[k])
        assert way.min() >= 2 * BETA_MIN - 1e-9
        assert way.max() <= 2 * BETA_MAX + 1e-9


def test_limits_of_alpha() -> None:
    task, init, previous, f = adapters(3, 4)
    fisher = {k: v + 0.1 for k, v in positive(f).items()}
    small, _ = fuse(task, init, previous, fisher, None, alpha=1e-9)
    for k in task:
        middle = (init[k] + previous[k]) / 2
        assert torch.allclose(small[k], task[k] + 2 * BETA_MAX * (middle - task[k]))
    large, _ = fuse(task, init, previous, fisher, None, alpha=1e9)
    certain = flat(fisher_ratio(fisher)) > 1e-6
    distance = (flat(large) - flat(task)).abs() / flat(displacement(task, init, previous)).abs()
    assert distance[certain].max() < 2e-3  # the clip's lower end


def test_the_fixed_rules_that_use_the_mean_are_those_for_which_it_is_kept() -> None:
    others = [{"w": torch.full((2,), value)} for value in (1.0, 2.0, 3.0)]
    means = [{"w": torch.full((2,), value)} for value in (4.0, 5.0)]
    fused = {
        name: [rule(*others, mean)["w"] for mean in means] for name, rule in FIXED_RULES.items()
    }
    assert {name for name, (one, other) in fused.items() if not one.equal(other)} == NEED_MEAN


def test_a_third_is_the_mean_of_the_three() -> None:
    task, init, previous = adapters(4)
    fused = fuse_fixed(task, init, previous, beta=1 / 3)
    for k in task:
        assert torch.allclose(fused[k], (task[k] + init[k] + previous[k]) / 3)


@pytest.mark.parametrize("consistent", [False, True])
def test_gamma_of_a_half_is_the_base_rule(consistent: bool) -> None:
    task, init, previous, g, f = adapters(5, 5)
    base, _ = fuse(task, init, previous, positive(f), g)
    same, _ = fuse(task, init, previous, positive(f), g, gamma=0.5, gamma_consistent=consistent)
    assert all(torch.equal(base[k], same[k]) for k in base)


def test_gamma_weighs_initialisation_against_the_past() -> None:
    task, init, previous, g, f = adapters(6, 5)
    _, beta = fuse(task, init, previous, positive(f), g)
    for gamma in (0.0, 0.3, 1.0):
        fused, same_beta = fuse(task, init, previous, positive(f), g, gamma=gamma)
        for k in task:
            assert torch.equal(beta[k], same_beta[k])
            old = 2 * (1 - gamma) * beta[k] * previous[k]
            by_hand = 2 * gamma * beta[k] * init[k] + old + (1 - 2 * beta[k]) * task[k]
            assert torch.allclose(fused[k], by_hand)
        consistent, own_beta = fuse(
            task, init, previous, positive(f), g, gamma=gamma, gamma_consistent=True
        )
        distance = displacement(task, init, previous, gamma)
        for k in task:
            assert torch.allclose(consistent[k], task[k] + own_beta[k] * distance[k])


def test_finite_where_nothing_moved_and_fisher_is_degenerate() -> None:
    task, _, _, g, f = adapters(7, 5)
    same, beta = fuse(task, task, task, positive(f), g)  # D = 0 everywhere, g is not
    assert all(torch.equal(same[k], task[k]) for k in task)
    assert flat(beta).isnan().all()
    for gamma in (0.2, 0.5):
        out, _ = fuse(task, task, task, positive(f), g, gamma=gamma)
        assert all(torch.allclose(out[k], task[k]) for k in task)
    constant = {k: torch.full_like(v, 3.0) for k, v in task.items()}
    zero = {k: torch.zeros_like(v) for k, v in task.items()}
    for scope in ("global", "layer", "tensor"):
        assert (flat(fisher_ratio(constant, scope)) == 1).all()
        assert (flat(fisher_ratio(zero, scope)) == 0).all()


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(1e-6, 1e6), st.sampled_from(["global", "layer", "tensor"]))
def test_ratio_has_mean_one_and_ignores_the_losss_scale(
    seed: int, scale: float, scope: str
) -> None:
    fisher = positive(adapters(seed, 1)[0])
    ratio = fisher_ratio(fisher, scope)
    scaled = fisher_ratio({k: v * scale**2 for k, v in fisher.items()}, scope)
    assert torch.allclose(flat(ratio), flat(scaled), rtol=1e-6)
    assert flat(ratio).min() >= 0
    if scope == "global":
        assert flat(ratio).mean().item() == pytest.approx(1)
    elif scope == "layer":
        for layer in range(2):
            of_layer = torch.cat([v[layer].flatten() for v in ratio.values()])
            assert of_layer.mean().item() == pytest.approx(1)
    else:
        for v in ratio.values():
            assert v.flatten(1).mean(1).tolist() == pytest.approx([1, 1])


def test_scope_must_be_known() -> None:
    with pytest.raises(ValueError, match="fisher_scope"):
        fisher_ratio(positive(adapters(1, 1)[0]), "block")


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 12))
def test_running_mean_is_the_mean_and_forgets_the_initialisation(seed: int, tasks: int) -> None:
    init, *trained = adapters(seed, tasks + 1)
    mean: Tensors | None = init
    for number, task in enumerate(trained, 1):
        mean = running_mean(mean, task, number)
    assert mean is not None
    for k in init:
        assert torch.allclose(mean[k], torch.stack([t[k] for t in trained]).mean(0))


def test_pull_without_gradient_is_a_precision_weighted_merge() -> None:
    task, init, previous, f = adapters(8, 4)
    ratio = fisher_ratio(positive(f))
    distance = displacement(task, init, previous)
    pulled = pull(distance, ratio, None, alpha=2.0)
    for k, beta in coefficient(distance, pulled).items():
        kept = 1 - 1 / (1 + 2.0 * ratio[k] / 2)  # data precision αr/2 against prior precision 1
        assert torch.allclose((1 - 2 * beta).clamp(0.002, 0.998), kept.clamp(0.002, 0.998))


def test_diagnosis_counts_what_was_clipped_and_measures_the_bound() -> None:
    task, init, previous, g, f = adapters(9, 5)
    fisher = positive(f)
    fused, beta = fuse(task, init, previous, fisher, g)
    found = diagnose(beta, Curvature(g, fisher, 0.25), fused, task, init, previous)
    values = flat(beta)
    assert found["clipped_low"] == pytest.approx((values <= BETA_MIN + 1e-9).double().mean().item())
    assert found["clipped_high"] == pytest.approx(
        (values >= BETA_MAX - 1e-9).double().mean().item()
    )
    assert found["bound"] == {
        "empirical_risk": 0.25,
        "init_sq_distance": pytest.approx((flat(task) - flat(init)).square().sum().item()),
        "global_sq_distance": pytest.approx(squared_distance(fused, previous)),
    }
    layer = torch.cat([b[1].flatten() for b in beta.values()])
    assert found["beta"][1]["mean"] == pytest.approx(layer.mean().item())
    assert found["beta"][1]["quantiles"]["50"] == pytest.approx(layer.quantile(0.5).item())
    ratio = (flat(g) / flat(displacement(task, init, previous))).abs()
    assert found["mean_abs_gradient_over_displacement"] == pytest.approx(ratio.mean().item())

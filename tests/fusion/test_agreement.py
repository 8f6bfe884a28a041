"""Comparing diagonals and parabolas, against numbers worked out by hand."""

import math

import pytest
import torch

from dafuse.fusion.agreement import agreement, agreements, bend, dot, parabola


def test_numbers_by_hand() -> None:
    found = agreement(torch.tensor([1.0, 2.0, 2.0, 10.0]), torch.tensor([3.0, -1.0, 4.0, 4.0]))
    # ranks 1, 2½, 2½, 4 and 2, 1, 3½, 3½, both with the mean 2½
    ranks = (0.75 + 0 + 0 + 1.5) / math.sqrt((2.25 + 2.25) * (0.25 + 2.25 + 1 + 1))
    assert found == pytest.approx(
        {
            "entries": 4,
            "rank_correlation": ranks,
            "cosine": (3 - 2 + 8 + 40) / math.sqrt((1 + 4 + 4 + 100) * (9 + 1 + 16 + 16)),
            "ratio_of_sums": 15 / 10,
            "negative": 0.25,
        }
    )


def test_rank_correlation_sees_order_alone() -> None:
    values = torch.randn(1000)
    assert agreement(values.exp(), values)["rank_correlation"] == pytest.approx(1)
    assert agreement(-values, values)["rank_correlation"] == pytest.approx(-1)
    assert agreement(values.exp(), values)["cosine"] < 0.9
    assert math.isnan(agreement(torch.ones(5), torch.arange(5.0))["rank_correlation"])


def test_all_tensors_together_and_each() -> None:
    a = {"x": torch.tensor([[1.0, 2.0]]), "y": torch.tensor([3.0])}
    b = {"y": torch.tensor([6.0]), "x": torch.tensor([[2.0, 4.0]])}
    found = agreements(a, b)
    assert list(found) == ["all", "y", "x"]
    assert found["all"]["entries"] == 3
    assert found["all"]["cosine"] == pytest.approx(1)
    assert found["x"]["ratio_of_sums"] == 0.5


def test_the_parabola_of_a_quadratic_is_the_quadratic() -> None:
    """f(θ) = ½ θ·A θ, exact with A itself; with its diagonal, off by the other entries."""
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    start, step = torch.tensor([1.0, -2.0]), {"t": torch.tensor([0.5, 1.0])}

    def f(theta: torch.Tensor) -> float:
        return float(0.5 * theta @ matrix @ theta)

    shares = [0.0, 0.3, 1.0]
    slope = dot({"t": matrix @ start}, step)
    full = parabola(f(start), slope, dot({"t": matrix @ step["t"]}, step), shares)
    assert full == pytest.approx([f(start + s * step["t"]) for s in shares])
    diagonal = parabola(f(start), slope, bend({"t": matrix.diagonal()}, step), shares)
    assert full[2] - diagonal[2] == pytest.approx(0.5 * 1.0)  # Δ₁ Δ₂ A₁₂

"""Ridge regression by its statistics, against regression done directly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dafuse.errors import DafuseError
from dafuse.heads import ridge


def problem(count: int, width: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    feats = centres[labels] + torch.randn(count, width, generator=generator)
    return feats, F.one_hot(labels, classes)


def direct(feats: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Least squares on rows that √λ I is written below: no normal equations."""
    feats, targets = feats.double(), targets.double()
    below = penalty**0.5 * torch.eye(feats.shape[1], dtype=torch.float64)
    zeros = torch.zeros(feats.shape[1], targets.shape[1], dtype=torch.float64)
    stacked = torch.cat([feats, below]), torch.cat([targets, zeros])
    return torch.linalg.lstsq(*stacked, driver="gelsd").solution.T


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([1e-2, 1.0, 1e3]))
def test_solution_is_that_of_direct_least_squares(count: int, width: int, penalty: float) -> None:
    feats, targets = problem(count, width, seed=count)
    gram, moments = ridge.statistics(feats, targets)
    rows = ridge.solve(gram, moments, penalty)
    assert torch.allclose(rows, direct(feats, targets, penalty), atol=1e-8)
    assert rows.is_contiguous()


def test_statistics_add_up_over_tasks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    feats, targets = problem(30, 5)
    lifted = lambda part: torch.relu(part @ torch.arange(35.0).reshape(5, 7))  # noqa: E731
    whole = ridge.statistics(feats, targets, lifted)
    monkeypatch.setattr(ridge, "CHUNK", 4)
    parts = [ridge.statistics(feats[a], targets[a], lifted) for a in (slice(11), slice(11, 30))]
    for position, expected in enumerate(whole):
        assert torch.allclose(parts[0][position] + parts[1][position], expected)
    hidden = lifted(feats).double()
    assert torch.allclose(whole[0], hidden.T @ hidden)
    assert torch.allclose(whole[1], targets.double().T @ hidden)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([(6, 12), (12, 12), (30, 8), (2, 5)]))
def test_chosen_penalty_has_the_least_error_held_out(seed: int, shape: tuple[int, int]) -> None:
    """Both forms find it: fewer images than dimensions, and more."""
    feats, targets = problem(shape[0] + 9, shape[1], seed=seed)
    train, held_out = slice(shape[0]), slice(shape[0], None)
    penalties = [10.0 ** (step / 4) for step in range(-8, 17)]  # fine: near misses show

    def error(penalty: float) -> float:
        rows = direct(feats[train], targets[train], penalty)
        return float((feats[held_out].double() @ rows.T - targets[held_out]).square().sum())

    chosen = ridge.choose_penalty(
        feats[train], targets[train], feats[held_out], targets[held_out], penalties
    )
    assert error(chosen) == pytest.approx(min(map(error, penalties)), rel=1e-6)


def test_chosen_penalty_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    feats, targets = problem(60, 10, seed=5)
    for count in (8, 40):
        asked = feats[:count], targets[:count], feats[40:], targets[40:]
        chosen = ridge.choose_penalty(*asked)
        with monkeypatch.context() as patch:
            patch.setattr(ridge, "CHUNK", 3)
            assert ridge.choose_penalty(*asked) == chosen
        assert 1e-8 < chosen < 1e8  # neither end of the list: noise needs some, signal not all


def test_gram_rounded_to_float32_gives_the_same_predictions() -> None:
    """There are many tasks and fewer images than dimensions, where rounding hurts most."""
    feats, targets = problem(120, 16, classes=6)
    projection = torch.randn(16, 300, generator=torch.Generator().manual_seed(1))
    hidden = torch.relu(feats @ projection).double()
    exact, moments = ridge.statistics(hidden, targets)
    rounded = torch.zeros(300, 300)
    for part in hidden.split(12):
        rounded = (rounded.double() + part.T @ part).float()
    floor = ridge.rounding_floor(rounded)
    assert floor > 2 * float(torch.linalg.matrix_norm(rounded.double() - exact, 2))
    for penalty in (floor, 1e2 * floor):
        predicted = hidden @ ridge.solve(exact, moments, penalty).T
        again = hidden @ ridge.solve(rounded, moments, penalty).T
        assert float((predicted - again).abs().max()) < 1e-2


def test_solution_has_the_precision_of_the_moments() -> None:
    gram, moments = ridge.statistics(*problem(9, 4))
    assert ridge.solve(gram, moments, 1.0).dtype == torch.float64
    assert ridge.solve(gram.float(), moments.float(), 1.0).dtype == torch.float32
    untouched = gram.clone()
    ridge.solve(gram, moments, 1.0)
    assert torch.equal(gram, untouched)


def test_an_indefinite_matrix_is_refused_in_words() -> None:
    with pytest.raises(DafuseError, match="penalty 2 is too small"):
        ridge.solve(-3 * torch.eye(3), torch.ones(1, 3), 2.0)


def test_images_left_out_are_scored_as_if_they_had_not_been_there() -> None:
    feats, targets = problem(12, 5)
    gram, moments = ridge.statistics(feats, targets)
    labels = targets.argmax(1)
    found = ridge.left_out(gram, moments, 0.3, feats, labels)
    for row in range(12):
        others = torch.arange(12) != row
        rows = direct(feats[others], targets[others], 0.3)
        assert torch.allclose(found[row], rows @ feats[row].double(), atol=1e-8)

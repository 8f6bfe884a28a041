"""Upper factors against what they are defined by, in numpy and in torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dafuse.heads.factors import (
    BLOCK,
    factor_of_rows,
    factor_of_square,
    joined,
    solved_backward,
    solved_forward,
    squared,
)
from dafuse.heads.scatter import PooledScatter

LIBRARIES: dict[str, Callable[[np.ndarray], Any]] = {"numpy": lambda a: a, "torch": torch.tensor}
every_library = pytest.mark.parametrize("library", LIBRARIES)
WIDTH = 2 * BLOCK + 31  # two whole blocks and a part of one


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH))


@every_library
@pytest.mark.parametrize("known", [0, 5, BLOCK + 3, WIDTH - 1, WIDTH, 3 * WIDTH])
@pytest.mark.parametrize("more", [1, 7, 2 * BLOCK])
def test_rows_join_a_factor(library: str, known: int, more: int) -> None:
    put, before, rows = LIBRARIES[library], rows_of(known), rows_of(more, 1)
    found = np.asarray(joined(factor_of_rows(put(before)), put(rows)))
    assert found.shape == (min(WIDTH, min(WIDTH, known) + more), WIDTH)
    assert np.allclose(found.T @ found, before.T @ before + rows.T @ rows)
    assert np.array_equal(found, np.triu(found))
    assert (found.diagonal() >= 0).all()


@every_library
def test_rows_of_zeros_and_doubled_rows_join_a_factor(library: str) -> None:
    put, before, rows = LIBRARIES[library], rows_of(2 * WIDTH), rows_of(4, 1)[[0, 0, 1, 1]]
    before[:, 3] = rows[:, 3] = 0  # nothing to reflect there
    rows[:, BLOCK : 2 * BLOCK] = 0
    found = np.asarray(joined(factor_of_rows(put(before)), put(rows)))
    assert np.isfinite(found).all()
    assert np.allclose(found.T @ found, before.T @ before + rows.T @ rows)


@every_library
def test_joining_leaves_what_it_was_given_as_it_was(library: str) -> None:
    put = LIBRARIES[library]
    upper, rows = factor_of_rows(put(rows_of(WIDTH))), put(rows_of(9, 1))
    before = np.asarray(upper).copy(), np.asarray(rows).copy()
    joined(upper, rows)
    assert np.array_equal(before[0], np.asarray(upper))
    assert np.array_equal(before[1], np.asarray(rows))


@every_library
@pytest.mark.parametrize("height", [0, 10, WIDTH])
def test_a_square_is_that_of_all_rows(library: str, height: int) -> None:
    put, upper, rows = LIBRARIES[library], np.triu(rows_of(height)), rows_of(6, 1)
    found = np.asarray(squared(put(upper), put(rows)))
    assert np.allclose(found, upper.T @ upper + rows.T @ rows)


@every_library
def test_triangular_systems_are_solved(library: str) -> None:
    put, rows, columns = LIBRARIES[library], rows_of(3 * WIDTH), rows_of(3, 1).T
    upper = factor_of_square(put(rows.T @ rows))
    plain = np.asarray(upper)
    assert np.allclose(plain.T @ np.asarray(solved_forward(upper, put(columns))), columns)
    assert np.allclose(plain @ np.asarray(solved_backward(upper, put(columns))), columns)


@every_library
@pytest.mark.parametrize("batch", [1, 10, WIDTH // 2, 2 * WIDTH])
def test_a_scatter_is_the_same_however_its_rows_come(library: str, batch: int) -> None:
    put, rows = LIBRARIES[library], rows_of(3 * WIDTH)
    scatter = PooledScatter(WIDTH, put(rows))
    for number, start in enumerate(range(0, len(rows), batch)):
        part = rows[start : start + batch]
        scatter.add(put(part), np.zeros(len(part), dtype=np.int64))
        if number % 50 == 3:  # as between lessons, when nothing but the factor is left
            scatter.set_factor(scatter.factor())
    assert np.allclose(np.asarray(scatter.square()), rows.T @ rows)
    assert np.allclose(np.asarray(scatter.factor()), np.linalg.cholesky(rows.T @ rows).T)

"""The scatter of images about their class means, S = sum of (h - mu)(h - mu)^T, in two forms.

`PooledScatter` is one sum over all classes, exact. `ClasswiseScatter` keeps a record of each class,
from which a class can be taken out again; what does not fit into a record is kept as a diagonal.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dafuse.heads.arrays import Array, exact, library, on_cpu, zeros
from dafuse.heads.factors import factor_of_rows, factor_of_square, joined, squared

JOINING_PAYS = 1 / 4  # rows for each column, up to which they join a factor; more make a square


class Scatter(Protocol):
    """The scatter about the class means, in one form or another."""

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        """Add these rows' products h h^T; each row counts for a class."""

    def square(self, more_KM: Array | None = None) -> Array:
        """S [M, M], plus the products h h^T of more rows."""

    def rows(self) -> Array | None:
        """Few rows R [K, M] with R^T R = S, where there are such."""

    def merge(self, other: Any) -> None:
        """Add another scatter of the same form."""

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Become T^T S T, where the function gives rows times T."""


class PooledScatter:
    """One scatter for all classes: S = base + P^T P, with the rows P that came last.

    The base is an upper factor, of as many rows as there are images while these are few, or a
    square matrix. Rows wait in P until they are many or the factor is asked for.
    """

    def __init__(self, width: int, like: Array) -> None:
        self.width = width
        self._upper_KM: Array | None = zeros(like, 0, width)
        self._square_MM: Array | None = None  # the base, where there is no factor of it
        self._waiting: list[Array] = []  # P, in parts

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        self._waiting = [*self._waiting, rows_KM]
        known = self.width if self._upper_KM is None else len(self._upper_KM)
        waiting = sum(map(len, self._waiting))
        if known + waiting >= self.width and waiting > JOINING_PAYS * self.width:
            self._square_MM, self._upper_KM, self._waiting = self.square(), None, []

    def merge(self, other: "PooledScatter") -> None:
        if (rows_KM := other.rows()) is not None:
            self.add(rows_KM, np.zeros(len(rows_KM), dtype=np.int64))
        else:
            self._square_MM = self.square() + other.square()
            self._upper_KM, self._waiting = None, []

    def square(self, more_KM: Array | None = None) -> Array:
        base: Array = self._square_MM if self._upper_KM is None else self._upper_KM
        more = [*self._waiting, *([] if more_KM is None else [more_KM])]
        rows_KM = library(base).concatenate([base[:0], *more])
        if self._upper_KM is not None:
            return squared(self._upper_KM, rows_KM)
        return base + rows_KM.T @ rows_KM if len(rows_KM) else base

    def rows(self) -> Array | None:
        if self._upper_KM is None:
            return None
        rows_KM = library(self._upper_KM).concatenate([self._upper_KM, *self._waiting])
        return rows_KM if len(rows_KM) < self.width else None

    def factor(self) -> Array:
        """The upper factor U [K, M] with U^T U = S, K <= M: no row of it belongs to an image."""
        if self._upper_KM is not None and not self._waiting:
            return self._upper_KM
        if self._upper_KM is not None and on_cpu(self._upper_KM):
            return joined(self._upper_KM, self._rows_waiting())
        rows_KM = self.rows()  # on a GPU products are cheap, and many small steps are not
        return factor_of_square(self.square()) if rows_KM is None else factor_of_rows(rows_KM)

    def set_factor(self, factor_KM: Array) -> None:
        """Become what has this upper factor."""
        self._become(exact(factor_KM))

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Have every row mapped."""
        rows_KM = self.rows()
        mapped_KM = map_rows(self.factor() if rows_KM is None else rows_KM)
        self._become(zeros(mapped_KM, 0, self.width))
        self.add(mapped_KM, np.zeros(len(mapped_KM), dtype=np.int64))

    def _become(self, upper_KM: Array) -> None:
        self._upper_KM, self._square_MM, self._waiting = upper_KM, None, []

    def _rows_waiting(self) -> Array:
        return library(self._waiting[0]).concatenate(self._waiting)


class ClasswiseScatter:
    """A record of each class: the leading directions of its scatter, a diagonal for the rest.

    The sum over classes is the scatter. A class can be taken out exactly, and merging models of
    different classes copies records. What does not lie along the directions is kept as if its
    numbers varied independently.
    """

    def __init__(self, width: int, rank: int, like: Array) -> None:
        self.width, self.rank = width, rank
        self.directions_CRM = zeros(like, 0, rank, width)
        self.rest_CM = zeros(like, 0, width)

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        xp = library(rows_KM)
        new = int(labels_K.max(initial=-1)) + 1 - len(self.rest_CM)
        if new > 0:
            more = zeros(self.rest_CM, new, self.rank, self.width)
            self.directions_CRM = xp.concatenate([self.directions_CRM, more])
            self.rest_CM = xp.concatenate([self.rest_CM, zeros(self.rest_CM, new, self.width)])
        for label in np.unique(labels_K):
            own_KM = rows_KM[labels_K == label]
            both = xp.concatenate([self.directions_CRM[label], own_KM])
            leading, dropped_M = _cut(both, self.rank)
            self.directions_CRM[label] = leading
            self.rest_CM[label] = self.rest_CM[label] + dropped_M

    def merge(self, other: "ClasswiseScatter") -> None:
        classes = np.arange(len(other.rest_CM))
        self.add(other.directions_CRM.reshape(-1, self.width), classes.repeat(other.rank))
        self.rest_CM[: len(classes)] += other.rest_CM

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Have the directions mapped; the rest, of which no direction is known, stays."""
        self.directions_CRM = map_rows(self.directions_CRM)

    def square(self, more_KM: Array | None = None) -> Array:
        flat_KM = self.directions_CRM.reshape(-1, self.width)
        if more_KM is not None:
            flat_KM = library(flat_KM).concatenate([flat_KM, more_KM])
        square_MM = flat_KM.T @ flat_KM
        square_MM.reshape(-1)[:: self.width + 1] += self.rest_CM.sum(0)
        return square_MM

    def rows(self) -> Array | None:
        return None


def _cut(rows_KM: Array, rank: int) -> tuple[Array, Array]:
    """The leading directions [rank, M] of these rows' scatter, and the diagonal of the rest."""
    xp = library(rows_KM)
    _, vectors_KK = xp.linalg.eigh(rows_KM @ rows_KM.T)
    leading = vectors_KK[:, -rank:].T @ rows_KM
    missing = rank - len(leading)
    if missing > 0:
        leading = xp.concatenate([leading, zeros(rows_KM, missing, rows_KM.shape[1])])
    dropped_M = (rows_KM**2).sum(0) - (leading**2).sum(0)
    return leading, dropped_M * (dropped_M > 0)

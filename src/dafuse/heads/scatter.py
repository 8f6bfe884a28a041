"""The scatter of images about their class means, S = sum of (h - mu)(h - mu)^T, in three forms.

`PooledScatter` is one exact sum over all classes. `ClasswiseScatter` keeps a record of each class,
so that a class can be taken out again; what does not fit into a record is kept as a diagonal.
`RecordsAndImages` keeps a lesson's images whole beside the earlier records, because an image can
only be left out again if everything that it added is there.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dafuse.heads.arrays import Array, add_to_diagonal, exact, library, on_cpu, zeros
from dafuse.heads.factors import factor_of_rows, factor_of_square, joined, squared

JOINING_PAYS = 1 / 4  # max rows per column that join a factor; more are added to a square matrix


class Scatter(Protocol):
    """The scatter about the class means, in one form or another."""

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        """Add the products h h^T of these rows; each row counts for a class."""

    def square(self, more_KM: Array | None = None) -> Array:
        """Return S [M, M], plus the products h h^T of more rows."""

    def rows(self) -> Array | None:
        """Return rows R [K, M], K < M, with R^T R + diagonal = S; None if there are none."""

    def diagonal(self) -> Array | None:
        """Return what S has beside the products of its rows, [M]; None if that is nothing."""

    def part(self, columns: slice) -> Array:
        """Return the block [D, D] of S for these columns."""

    def merge(self, other: Any, numbers: np.ndarray) -> None:
        """Add another scatter of the same form, whose class i is ``numbers[i]`` here."""

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Become T^T S T, where ``map_rows`` multiplies rows by T."""


class PooledScatter:
    """One scatter for all classes: S = base + P^T P, with the most recent rows P.

    The base is an upper factor, with as many rows as there are images while these are few, or a
    square matrix. Rows wait in P until they are many or the factor is needed.
    """

    def __init__(self, width: int, like: Array) -> None:
        self.width = width
        self._upper_KM: Array | None = zeros(like, 0, width)
        self._square_MM: Array | None = None  # the base, if it is not a factor
        self._waiting: list[Array] = []  # P, in parts

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        self._waiting = [*self._waiting, rows_KM]
        known = self.width if self._upper_KM is None else len(self._upper_KM)
        waiting = sum(map(len, self._waiting))
        if known + waiting >= self.width and waiting > JOINING_PAYS * self.width:
            self._square_MM, self._upper_KM, self._waiting = self.square(), None, []

    def merge(self, other: "PooledScatter", numbers: np.ndarray) -> None:
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

    def diagonal(self) -> Array | None:
        return None

    def part(self, columns: slice) -> Array:
        rows_KM = self.rows()
        if rows_KM is None:
            return self.square()[columns, columns]
        return rows_KM[:, columns].T @ rows_KM[:, columns]

    def factor(self) -> Array:
        """Return the upper factor U [K, M] with U^T U = S, K <= M; no row belongs to one image."""
        if self._upper_KM is not None and not self._waiting:
            return self._upper_KM
        if self._upper_KM is not None and on_cpu(self._upper_KM):
            return joined(self._upper_KM, self._rows_waiting())
        rows_KM = self.rows()  # on a GPU products are cheap and many small steps are not
        return factor_of_square(self.square()) if rows_KM is None else factor_of_rows(rows_KM)

    def set_factor(self, factor_KM: Array) -> None:
        """Become the scatter of this upper factor."""
        self._become(exact(factor_KM))

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Map every row."""
        rows_KM = self.rows()
        mapped_KM = map_rows(self.factor() if rows_KM is None else rows_KM)
        self._become(zeros(mapped_KM, 0, self.width))
        self.add(mapped_KM, np.zeros(len(mapped_KM), dtype=np.int64))

    def _become(self, upper_KM: Array) -> None:
        self._upper_KM, self._square_MM, self._waiting = upper_KM, None, []

    def _rows_waiting(self) -> Array:
        return library(self._waiting[0]).concatenate(self._waiting)


class ClasswiseScatter:
    """A record for each class: the leading directions of its scatter, a diagonal for the rest.

    The scatter is the sum over classes. A class can be taken out exactly, and merging models of
    different classes copies records. The rest is kept as if its columns varied independently.
    """

    def __init__(self, width: int, rank: int, like: Array) -> None:
        self.width, self.rank = width, rank
        self.directions_CRM = zeros(like, 0, rank, width)
        self.rest_CM = zeros(like, 0, width)

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        xp = library(rows_KM)
        new = int(labels_K.max(initial=-1)) + 1 - len(self.rest_CM)
        if new > 0:
            self.grow(new)
        for label in np.unique(labels_K):
            own_KM = rows_KM[labels_K == label]
            both = xp.concatenate([self.directions_CRM[label], own_KM])
            leading, dropped_M = _cut(both, self.rank)
            self.directions_CRM[label] = leading
            self.rest_CM[label] = self.rest_CM[label] + dropped_M

    def merge(self, other: "ClasswiseScatter", numbers: np.ndarray) -> None:
        """Add another's records; records of classes without one here are copied."""
        new = int(numbers.max(initial=-1)) + 1 - len(self.rest_CM)
        if new > 0:
            self.grow(new)
        for own, label in enumerate(numbers[: len(other.rest_CM)].tolist()):
            directions_RM, rest_M = other.directions_CRM[own], other.rest_CM[own]
            if other.is_empty(own):
                continue
            if self.is_empty(label):
                self.directions_CRM[label], self.rest_CM[label] = directions_RM, rest_M
            else:
                self.add(directions_RM, np.full(other.rank, label))
                self.rest_CM[label] += rest_M

    def is_empty(self, label: int) -> bool:
        """Tell whether a class has no scatter: it has at most one image."""
        return not bool((self.directions_CRM[label] != 0).any() or (self.rest_CM[label] != 0).any())

    def take(self, classes: np.ndarray) -> None:
        """Keep the records of these classes only, in this order."""
        self.directions_CRM = self.directions_CRM[classes]
        self.rest_CM = self.rest_CM[classes]

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Map the directions; the rest stays, because it has no directions."""
        self.directions_CRM = map_rows(self.directions_CRM)

    def square(self, more_KM: Array | None = None) -> Array:
        flat_KM = self.directions_CRM.reshape(-1, self.width)
        if more_KM is not None:
            flat_KM = library(flat_KM).concatenate([flat_KM, more_KM])
        square_MM = flat_KM.T @ flat_KM
        square_MM.reshape(-1)[:: self.width + 1] += self.rest_CM.sum(0)
        return square_MM

    def rows(self) -> Array | None:
        flat_KM = self.directions_CRM.reshape(-1, self.width)
        flat_KM = flat_KM[(flat_KM != 0).any(1)]
        return flat_KM if len(flat_KM) < self.width else None

    def diagonal(self) -> Array | None:
        return self.rest_CM.sum(0)

    def part(self, columns: slice) -> Array:
        width = len(range(*columns.indices(self.width)))
        flat_KD = self.directions_CRM[..., columns].reshape(-1, width)
        return add_to_diagonal(flat_KD.T @ flat_KD, self.rest_CM[:, columns].sum(0))

    def grow(self, new: int) -> None:
        """Add so many classes without images."""
        xp = library(self.rest_CM)
        more = zeros(self.rest_CM, new, self.rank, self.width)
        self.directions_CRM = xp.concatenate([self.directions_CRM, more])
        self.rest_CM = xp.concatenate([self.rest_CM, zeros(self.rest_CM, new, self.width)])


class RecordsAndImages:
    """The earlier records and, added up without a cut, the images since."""

    def __init__(self, records: ClasswiseScatter) -> None:
        self.records = records
        self.images = PooledScatter(records.width, records.rest_CM)

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        self.images.add(rows_KM, labels_K)

    def merge(self, other: "RecordsAndImages", numbers: np.ndarray) -> None:
        self.records.merge(other.records, numbers)
        self.images.merge(other.images, numbers)

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        self.records.follow(map_rows)
        self.images.follow(map_rows)

    def square(self, more_KM: Array | None = None) -> Array:
        return self.records.square(more_KM) + self.images.square()

    def rows(self) -> Array | None:
        old_KM, new_KM = self.records.rows(), self.images.rows()
        if old_KM is None or new_KM is None or len(old_KM) + len(new_KM) >= self.records.width:
            return None
        return library(old_KM).concatenate([old_KM, new_KM])

    def diagonal(self) -> Array | None:
        return self.records.diagonal()

    def part(self, columns: slice) -> Array:
        return self.records.part(columns) + self.images.part(columns)


def _cut(rows_KM: Array, rank: int) -> tuple[Array, Array]:
    """Return the leading directions [rank, M] of these rows' scatter, and the rest's diagonal."""
    xp = library(rows_KM)
    _, vectors_KK = xp.linalg.eigh(rows_KM @ rows_KM.T)
    leading = vectors_KK[:, -rank:].T @ rows_KM
    missing = rank - len(leading)
    if missing > 0:
        leading = xp.concatenate([leading, zeros(rows_KM, missing, rows_KM.shape[1])])
    dropped_M = (rows_KM**2).sum(0) - (leading**2).sum(0)
    return leading, dropped_M * (dropped_M > 0)

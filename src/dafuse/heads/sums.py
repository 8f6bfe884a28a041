"""What is kept of images: for each class a count and a mean, and the scatter about the means.

    S = sum over images of (h - mu)(h - mu)^T,    mu the mean of the image's class

These add up: over batches, lessons and machines, in any order. More images of a known class move
its mean, and the scatter takes the move up: two parts of n1 and n2 images whose means are d apart
have together S1 + S2 + n1 n2 / (n1 + n2) d d^T. Every head of `heads.closed_form` follows.

All of it works on numpy arrays and on torch tensors (`heads.arrays`), in float64.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from dafuse.heads.arrays import Array, exact, library, one_hot, to_numpy, zeros

CHUNK = 4096  # images whose hidden features are held in float64 at once


class Scatter(Protocol):
    """The scatter about the class means, in one form or another."""

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        """Add these rows' products h h^T; each row counts for a class."""

    def square(self) -> Array:
        """S [M, M]."""

    def rows(self) -> Array | None:
        """Few rows R [K, M] with R^T R = S, where there are such."""

    def merge(self, other: Any) -> None:
        """Add another scatter of the same form."""

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Become T^T S T, where the function gives rows times T."""


class ClassSums:
    """Counts, means and scatter of the classes 0..C-1; a class appears with its first image."""

    def __init__(self, counts_C: Array, means_CM: Array, scatter: Scatter) -> None:
        self.counts_C, self.means_CM, self.scatter = counts_C, means_CM, scatter

    @property
    def images(self) -> float:
        return float(self.counts_C.sum())

    @property
    def classes(self) -> int:
        return len(self.counts_C)

    @property
    def width(self) -> int:
        return int(self.means_CM.shape[1])

    def add(self, hidden_NM: Array, labels_N: Array) -> None:
        """Images of known and of new classes, mixed as they come."""
        for start in range(0, len(hidden_NM), CHUNK):
            part = slice(start, start + CHUNK)
            self._add(exact(hidden_NM[part]), labels_N[part])

    def merge(self, other: "ClassSums") -> None:
        """What another was taught, whose class numbers mean the same classes."""
        self._grow(other.classes)
        known = np.arange(other.classes)
        self._move(other.counts_C, other.means_CM, known)
        self.scatter.merge(other.scatter)

    def _add(self, hidden_NM: Array, labels_N: Array) -> None:
        numbers = to_numpy(labels_N)
        self._grow(int(numbers.max(initial=-1)) + 1)
        hot_NC = one_hot(labels_N, self.classes, hidden_NM)
        counts_C = hot_NC.sum(0)
        means_CM = hot_NC.T @ hidden_NM / _at_least_one(counts_C)[:, None]
        self.scatter.add(hidden_NM - hot_NC @ means_CM, numbers)
        self._move(counts_C, means_CM, np.unique(numbers))

    def _move(self, more_C: Array, means_CM: Array, present: np.ndarray) -> None:
        """Take up counts and means of more images; the scatter gets the means' moves."""
        old_P, more_P = self.counts_C[present], more_C[present]
        total_P = _at_least_one(old_P + more_P)
        apart_PM = means_CM[present] - self.means_CM[present]
        moved = to_numpy((old_P * more_P) > 0)
        weight_P = (old_P * more_P / total_P) ** 0.5
        if moved.any():
            self.scatter.add((weight_P[:, None] * apart_PM)[moved], present[moved])
        # new arrays, since sums at rest may share the old ones
        self.counts_C, self.means_CM = self.counts_C + 0, self.means_CM + 0
        self.means_CM[present] += apart_PM * (more_P / total_P)[:, None]
        self.counts_C[present] += more_P

    def _grow(self, classes: int) -> None:
        new = classes - self.classes
        if new > 0:
            xp = library(self.means_CM)
            self.counts_C = xp.concatenate([self.counts_C, zeros(self.means_CM, new)])
            self.means_CM = xp.concatenate([self.means_CM, zeros(self.means_CM, new, self.width)])


class PooledScatter:
    """One scatter for all classes: rows while there are few, a square matrix from then on."""

    def __init__(self, width: int, like: Array) -> None:
        self._rows_KM: Array | None = zeros(like, 0, width)
        self._square_MM: Array | None = None
        self.width = width

    def add(self, rows_KM: Array, labels_K: np.ndarray) -> None:
        if self._rows_KM is not None:
            self._rows_KM = library(rows_KM).concatenate([self._rows_KM, rows_KM])
            if len(self._rows_KM) >= self.width:
                self._square_MM, self._rows_KM = self._rows_KM.T @ self._rows_KM, None
        else:
            self._square_MM = self._square_MM + rows_KM.T @ rows_KM

    def merge(self, other: "PooledScatter") -> None:
        if other._rows_KM is not None:
            self.add(other._rows_KM, np.zeros(len(other._rows_KM), dtype=np.int64))
        else:
            self._square_MM, self._rows_KM = self.square() + other._square_MM, None

    def square(self) -> Array:
        return self._square_MM if self._rows_KM is None else self._rows_KM.T @ self._rows_KM

    def rows(self) -> Array | None:
        return self._rows_KM

    def factor(self) -> Array:
        """The upper factor U [K, M] with U^T U = S, K <= M: no row of it belongs to an image."""
        if self._rows_KM is None:
            return square_root(self._square_MM)
        if not len(self._rows_KM):
            return self._rows_KM
        xp = library(self._rows_KM)
        found = xp.linalg.qr(self._rows_KM, mode="r")
        return _signed(found if xp is np else found.R)

    def set_factor(self, factor_KM: Array) -> None:
        """Become what has this upper factor."""
        rows_KM = exact(factor_KM)
        if len(rows_KM) < self.width:
            self._rows_KM, self._square_MM = rows_KM, None
        else:
            self._rows_KM, self._square_MM = None, _squared(rows_KM)

    def follow(self, map_rows: Callable[[Array], Array]) -> None:
        """Have every row of a factor mapped."""
        rows_KM = map_rows(self.factor() if self._rows_KM is None else self._rows_KM)
        if self._rows_KM is None:
            self._square_MM = rows_KM.T @ rows_KM
        else:
            self._rows_KM = rows_KM


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

    def square(self) -> Array:
        flat_KM = self.directions_CRM.reshape(-1, self.width)
        square_MM = flat_KM.T @ flat_KM
        square_MM.reshape(-1)[:: self.width + 1] += self.rest_CM.sum(0)
        return square_MM

    def rows(self) -> Array | None:
        return None


def pooled(width: int, like: Array) -> ClassSums:
    """No images yet; the scatter of all classes will be one."""
    empty = zeros(like, 0, width)
    return ClassSums(zeros(like, 0), empty, PooledScatter(width, like))


def classwise(width: int, rank: int, like: Array) -> ClassSums:
    """No images yet; each class will have a record of its own."""
    empty = zeros(like, 0, width)
    return ClassSums(zeros(like, 0), empty, ClasswiseScatter(width, rank, like))


def _squared(upper_MM: Array) -> Array:
    """U^T U, without the products with zeros below the diagonal: two thirds of all."""
    width = len(upper_MM)
    square_MM = zeros(upper_MM, width, width)
    step = max(1, width // 8)
    for start in range(0, width, step):
        rows = upper_MM[start : start + step, start:]
        square_MM[start:, start:] += rows.T @ rows
    return square_MM


def square_root(square_MM: Array) -> Array:
    """The upper factor U [M, M] with U^T U = S, for an S that may lack full rank."""
    xp = library(square_MM)
    mean = float(square_MM.trace()) / max(1, len(square_MM))
    for share in _jitters():
        nudged = square_MM + xp.diag(_full(square_MM, share * mean))
        if xp is np:
            try:
                return np.linalg.cholesky(nudged).T
            except np.linalg.LinAlgError:
                continue
        lower_MM, failed = xp.linalg.cholesky_ex(nudged)
        if not failed:
            return lower_MM.T
    raise ArithmeticError("the scatter is not positive semi-definite")


def _jitters() -> Iterator[float]:
    """Shares of the mean diagonal that make a matrix of deficient rank definite."""
    yield 0.0
    for power in range(-14, 1):
        yield 10.0**power


def _full(square_MM: Array, value: float) -> Array:
    return zeros(square_MM, len(square_MM)) + value


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


def _signed(upper_KM: Array) -> Array:
    """With a diagonal of no negative numbers, which makes the factor the only one."""
    signs_K = library(upper_KM).sign(upper_KM.diagonal())
    return upper_KM * (signs_K + (signs_K == 0))[:, None]


def _at_least_one(counts_C: Array) -> Array:
    return counts_C + (counts_C == 0)

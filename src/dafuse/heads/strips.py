"""Large symmetric matrices as their lower triangle, in strips of rows that are whole arrays.

Half of the products and bytes are saved, each step works on a part that fits into a cache, and what
is stored is what is computed with. The block of a strip on the diagonal is whole.
"""

from collections.abc import Iterator

import numpy as np

ROWS = 384  # in a strip


def ends(width: int) -> Iterator[tuple[int, int]]:
    """Yield where each strip begins and ends."""
    for start in range(0, width, ROWS):
        yield start, min(start + ROWS, width)


def entries(width: int) -> int:
    """Return how many numbers the strips of a matrix of this width have."""
    return sum((end - start) * end for start, end in ends(width))


class Strips:
    """The strips [end - start, end] of a matrix, one after another in one array."""

    def __init__(self, flat: np.ndarray, width: int) -> None:
        """Raise `ValueError` if the array has not as many numbers as such strips."""
        if flat.shape != (entries(width),):
            raise ValueError(f"these are not the strips of a matrix of {width} columns")
        self.flat, self.width, at = flat, width, 0
        self.parts: list[tuple[int, int, np.ndarray]] = []
        for start, end in ends(width):
            size = (end - start) * end
            self.parts.append((start, end, flat[at : at + size].reshape(end - start, end)))
            at += size

    @classmethod
    def zeros(cls, width: int) -> "Strips":
        return cls(np.zeros(entries(width)), width)

    def copy(self, dtype: type = np.float64) -> "Strips":
        return Strips(self.flat.astype(dtype), self.width)

    def add_products(self, rows_KM: np.ndarray, sign: float = 1.0) -> None:
        """Add X^T X for these rows X, or subtract it."""
        if len(rows_KM):
            for start, end, strip in self.parts:
                strip += (sign * rows_KM[:, start:end]).T @ rows_KM[:, :end]

    def add_to_diagonal(self, values: np.ndarray | float) -> None:
        values_M = np.broadcast_to(values, self.width)
        for start, end, strip in self.parts:
            rows = np.arange(end - start)
            strip[rows, start + rows] += values_M[start:end]

    @property
    def trace(self) -> float:
        return float(sum(strip[:, start:].trace() for start, _, strip in self.parts))

    def product(self, columns_MK: np.ndarray) -> np.ndarray:
        """Return the product of the symmetric matrix with these columns."""
        found_MK = np.zeros_like(columns_MK)
        for start, end, strip in self.parts:
            found_MK[start:end] += strip @ columns_MK[:end]
            found_MK[:start] += strip[:, :start].T @ columns_MK[start:end]
        return found_MK

    def block(self, columns: slice) -> np.ndarray:
        """Return the whole block [D, D] of these columns."""
        first, last, _ = columns.indices(self.width)
        found_DD = np.zeros((last - first, last - first))
        for start, end, strip in self.parts:
            low, high = max(start, first), min(end, last)
            if low < high:
                found_DD[low - first : high - first, : high - first] = strip[
                    low - start : high - start, first:high
                ]
        lower_DD = np.tril(found_DD)
        return lower_DD + np.tril(lower_DD, -1).T


class Solver:
    """Solutions of systems with A = L L^T, where L is lower triangular."""

    def __init__(self, factor: Strips, inverses: list[np.ndarray] | None = None) -> None:
        """Take a factor that was made before, with the inverses of its diagonal blocks, if known.

        `of` makes one.
        """
        self.factor = factor
        self._inverses = inverses or [
            np.linalg.inv(strip[:, start:]) for start, _, strip in factor.parts
        ]

    @classmethod
    def of(cls, matrix: Strips) -> "Solver":
        """Factorise a positive definite matrix in its place.

        Raises:
            numpy.linalg.LinAlgError: it is not positive definite up to rounding
        """
        inverses: list[np.ndarray] = []
        for start, _, strip in matrix.parts:
            for (left, right, above), inverse_BB in zip(matrix.parts, inverses, strict=False):
                block_RB = strip[:, left:right] - strip[:, :left] @ above[:, :left].T
                strip[:, left:right] = block_RB @ inverse_BB.T
            own_RR = strip[:, start:] - strip[:, :start] @ strip[:, :start].T
            strip[:, start:] = np.linalg.cholesky(own_RR)
            inverses.append(np.linalg.inv(strip[:, start:]))
        return cls(matrix, inverses)

    def __call__(self, columns_MK: np.ndarray) -> np.ndarray:
        """Return X of ``A X = columns``."""
        found_MK = np.empty(columns_MK.shape, columns_MK.dtype)
        for (start, end, strip), inverse_BB in zip(self.factor.parts, self._inverses, strict=True):
            rest_BK = columns_MK[start:end] - strip[:, :start] @ found_MK[:start]
            found_MK[start:end] = inverse_BB @ rest_BK
        return self.backward(found_MK)

    def backward(self, columns_MK: np.ndarray) -> np.ndarray:
        """Return X of ``L^T X = columns``."""
        found_MK = columns_MK.copy()
        steps = zip(self.factor.parts, self._inverses, strict=True)
        for (start, end, strip), inverse_BB in reversed(list(steps)):
            found_MK[start:end] = inverse_BB.T @ found_MK[start:end]
            found_MK[:start] -= strip[:, :start].T @ found_MK[start:end]
        return found_MK

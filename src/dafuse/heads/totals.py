"""Totals over the records of all classes: what is solved for, whatever the number of classes.

    S = sum of the records' scatters,    Q = sum of mu mu^T,    s = sum of mu

A lesson takes the records that it changes out of the totals and puts the new ones in. Forgetting
subtracts, merging adds. The between-class part of `heads.closed_form` follows as
C C^T = Q - s s^T / K. Totals say nothing that the records do not say: they can always be made again
from them, and differ then by rounding only.
"""

import numpy as np

from dafuse.heads.scatter import ClasswiseScatter
from dafuse.heads.strips import Strips
from dafuse.heads.sums import ClassSums


class Totals:
    """Sums over class records, in float64."""

    def __init__(self, scatter: Strips, outer: Strips, sum_M: np.ndarray) -> None:
        self.scatter, self.outer, self.sum_M = scatter, outer, sum_M

    @classmethod
    def empty(cls, width: int) -> "Totals":
        return cls(Strips.zeros(width), Strips.zeros(width), np.zeros(width))

    def add(self, sums: ClassSums, sign: float = 1.0) -> None:
        """Put in the records of these classes; with the sign -1 take them out."""
        assert isinstance(sums.scatter, ClasswiseScatter)
        rows_KM = sums.scatter.directions_CRM.reshape(-1, len(self.sum_M))
        self.scatter.add_products(rows_KM[rows_KM.any(1)], sign)
        self.scatter.add_to_diagonal(sign * sums.scatter.rest_CM.sum(0))
        self.outer.add_products(sums.means_CM, sign)
        self.sum_M = self.sum_M + sign * sums.means_CM.sum(0)

    def between(self, classes: int, columns: slice) -> np.ndarray:
        """Return C C^T for these columns, the products of the centred class means."""
        sum_D = self.sum_M[columns]
        return self.outer.block(columns) - np.outer(sum_D, sum_D / classes)

    def matrix(self, classes: int, images: float) -> Strips:
        """Return S + b C C^T, to which ridge regression adds its penalty."""
        each, matrix = images / classes, Strips(np.empty_like(self.outer.flat), len(self.sum_M))
        pairs = zip(matrix.parts, self.outer.parts, self.scatter.parts, strict=True)
        for (start, end, strip), (_, _, outer), (_, _, scatter) in pairs:
            np.multiply(outer, each, out=strip)
            strip += scatter
            strip -= np.outer(self.sum_M[start:end] * (each / classes), self.sum_M[:end])
        return matrix

    def arrays(self) -> dict[str, np.ndarray]:
        return {"scatter": self.scatter.flat, "outer": self.outer.flat, "sum": self.sum_M}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Totals":
        """Undo `arrays`; raise `ValueError` if they do not fit together."""
        sum_M = arrays["sum"]
        scatter, outer = (Strips(arrays[name], len(sum_M)) for name in ("scatter", "outer"))
        return cls(scatter.copy(), outer.copy(), sum_M)

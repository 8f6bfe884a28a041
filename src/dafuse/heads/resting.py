"""Sums at rest: what is written down between lessons, and how little of it costs nothing.

The pooled scatter rests as its upper factor U (U^T U = S), packed without its zeros, each column
divided by the root of its sum of squares. Half precision is enough for a factor: rounding U moves S
little in the directions in which S is small, where rounding S itself would make it indefinite.
Records of classes are kept in the same way.
"""

from copy import copy
from typing import Literal

import numpy as np

from dafuse.heads.arrays import Array, exact, library, zeros
from dafuse.heads.sums import ClassSums, ClasswiseScatter, PooledScatter

Precision = Literal["float16", "float32", "float64"]


def at_rest(sums: ClassSums, precision: Precision) -> dict[str, Array]:
    """Arrays that say all that the sums know, as far as the precision goes."""
    means = "float64" if precision == "float64" else "float32"
    found = {
        "counts": sums.counts_C,
        "means": _cast(sums.means_CM, means),
    }
    if isinstance(sums.scatter, ClasswiseScatter):
        scale_M = _scale(sums.scatter.rest_CM + (sums.scatter.directions_CRM**2).sum(1))
        found["scale"] = _cast(scale_M, means)
        found["directions"] = _cast(sums.scatter.directions_CRM / scale_M, precision)
        found["rest"] = _cast((sums.scatter.rest_CM / scale_M**2) ** 0.5, precision)
    elif isinstance(sums.scatter, PooledScatter):
        factor_KM = sums.scatter.factor()
        scale_M = _scale(factor_KM**2)
        found["scale"] = _cast(scale_M, means)
        found["factor"] = _cast((factor_KM / scale_M)[_upper(factor_KM)], precision)
    return found


def awake(sums: ClassSums, resting: dict[str, Array]) -> None:
    """Become what these arrays say."""
    sums.counts_C, sums.means_CM = exact(resting["counts"]), exact(resting["means"])
    scale_M = exact(resting["scale"])
    if isinstance(sums.scatter, ClasswiseScatter):
        sums.scatter.directions_CRM = exact(resting["directions"]) * scale_M
        sums.scatter.rest_CM = (exact(resting["rest"]) * scale_M) ** 2
    elif isinstance(sums.scatter, PooledScatter):
        packed, width = exact(resting["factor"]), len(scale_M)
        factor_KM = zeros(packed, _height(len(packed), width), width)
        factor_KM[_upper(factor_KM)] = packed
        sums.scatter.set_factor(factor_KM * scale_M)


def rounded(sums: ClassSums, precision: Precision) -> tuple[ClassSums, dict[str, Array]]:
    """The sums as they will wake, and what they rest as; they stay as they are themselves."""
    resting = at_rest(sums, precision)
    later = copy(sums)
    later.scatter = copy(sums.scatter)
    awake(later, resting)
    return later, resting


def _upper(factor_KM: Array) -> Array:
    """Which entries of an upper factor are not zero by nature."""
    return library(factor_KM).triu(factor_KM == factor_KM)


def _height(entries: int, width: int) -> int:
    """How many rows so many entries of an upper factor make: k w - k (k - 1) / 2 of them."""
    return round(((2 * width + 1) - ((2 * width + 1) ** 2 - 8 * entries) ** 0.5) / 2)


def _scale(squares_KM: Array) -> Array:
    """The root of each column's sum of squares, or 1 where it is zero."""
    scale_M = squares_KM.sum(0) ** 0.5 if len(squares_KM) else squares_KM.sum(0) + 1
    return scale_M + (scale_M == 0)


def _cast(array: Array, precision: str) -> Array:
    xp = library(array)
    return array.astype(precision) if xp is np else array.to(getattr(xp, precision))

"""Sums at rest: what is written down between lessons, and how little of it costs nothing.

The pooled scatter rests as its upper factor U (U^T U = S), packed without its zeros, each column
divided by the root of its sum of squares. Half precision is enough for a factor: rounding U moves S
little in the directions in which S is small, where rounding S itself would make it indefinite.
Class means rest as differences from their mean, in steps of the largest of each column: in sixteen
bits that rounds them much less than half precision, which costs up to 0.2 points. In the records of
classes, directions and the root of the rest take eight bits a number, in steps of the largest of
each row.
"""

from copy import copy
from itertools import accumulate
from typing import Literal

import numpy as np

from dafuse.heads.arrays import Array, exact, library, zeros
from dafuse.heads.scatter import ClasswiseScatter, PooledScatter
from dafuse.heads.sums import ClassSums

Precision = Literal["float16", "float32", "float64"]
LEAST: Precision = "float16"  # of the factor; means and records as said above
STEPS = {"int8": 127, "int16": 32767}  # to either side of zero


def at_rest(sums: ClassSums, precision: Precision) -> dict[str, Array]:
    """Arrays that say all that the sums know, as far as the precision goes."""
    found = {"counts": sums.counts_C}
    if precision == LEAST:
        centre_M = sums.means_CM.mean(0) if sums.classes else sums.means_CM.sum(0)
        found["centre"] = cast(centre_M, "float32")
        apart_CM = sums.means_CM - exact(found["centre"])
        found["means"], found["means_step"] = in_steps(apart_CM, 0, "int16")
    else:
        found["means"] = cast(sums.means_CM, precision)
    unit = "float64" if precision == "float64" else "float32"
    if isinstance(sums.scatter, ClasswiseScatter):
        directions_CRM, rest_CM = sums.scatter.directions_CRM, sums.scatter.rest_CM
        scale_M = _root_or_one((rest_CM + (directions_CRM**2).sum(1)).sum(0))
        found["scale"] = cast(scale_M, unit)
        scale_M = exact(found["scale"])
        parts = {"directions": directions_CRM / scale_M, "rest": rest_CM**0.5 / scale_M}
        for name, part in parts.items():
            if precision == LEAST:
                found[name], found[f"{name}_step"] = in_steps(part, -1, "int8")
            else:
                found[name] = cast(part, precision)
    elif isinstance(sums.scatter, PooledScatter):
        factor_KM = sums.scatter.factor()
        scale_M = _root_or_one((factor_KM**2).sum(0))
        found["scale"] = cast(scale_M, unit)
        found["factor"] = _packed(cast(factor_KM / scale_M, precision))
    return found


def awake(sums: ClassSums, resting: dict[str, Array]) -> None:
    """Become what these arrays say."""
    sums.counts_C, sums.means_CM = exact(resting["counts"]), exact(resting["means"])
    if "centre" in resting:
        sums.means_CM = sums.means_CM * exact(resting["means_step"]) + exact(resting["centre"])
    scale_M = exact(resting["scale"])
    if isinstance(sums.scatter, ClasswiseScatter):
        sums.scatter.directions_CRM = _records(resting, "directions") * scale_M
        sums.scatter.rest_CM = (_records(resting, "rest") * scale_M) ** 2
    elif isinstance(sums.scatter, PooledScatter):
        sums.scatter.set_factor(_unpacked(resting["factor"], len(scale_M)) * scale_M)


def rounded(sums: ClassSums, precision: Precision) -> tuple[ClassSums, dict[str, Array]]:
    """The sums as they will wake, and what they rest as; they stay as they are themselves."""
    resting = at_rest(sums, precision)
    later = copy(sums)
    later.scatter = copy(sums.scatter)
    awake(later, resting)
    return later, resting


def in_steps(
    array: Array, axis: Literal[0, -1], kind: Literal["int8", "int16"]
) -> tuple[Array, Array]:
    """Whole numbers of steps, and the step of all that lies along an axis: its largest fits."""
    xp, array = library(array), exact(array)
    nothing = 0 * abs(array).sum(axis)  # an axis may be empty
    largest = xp.amax(abs(array), axis) if array.shape[axis] else nothing
    step = cast((largest + (largest == 0)) / STEPS[kind], "float32")
    wide = exact(step)[None] if axis == 0 else exact(step)[..., None]
    return cast(xp.round(array / wide), kind), step


def cast(array: Array, precision: str) -> Array:
    xp = library(array)
    return array.astype(precision) if xp is np else array.to(getattr(xp, precision))


def _records(resting: dict[str, Array], name: str) -> Array:
    """The numbers of an array that may rest in eight bits."""
    numbers, step = exact(resting[name]), resting.get(f"{name}_step")
    return numbers if step is None else numbers * exact(step)[..., None]


def _packed(factor_KM: Array) -> Array:
    """Row after row, without the zeros before its diagonal."""
    if not len(factor_KM):
        return factor_KM.reshape(-1)
    return library(factor_KM).concatenate([row[i:] for i, row in enumerate(factor_KM)])


def _unpacked(packed: Array, width: int) -> Array:
    height = _height(len(packed), width)
    factor_KM = zeros(packed, height, width)
    ends = accumulate(width - i for i in range(height))
    for i, end in enumerate(ends):
        factor_KM[i, i:] = packed[end - width + i : end]
    return factor_KM


def _height(entries: int, width: int) -> int:
    """How many rows so many entries of an upper factor make: k w - k (k - 1) / 2 of them."""
    return round(((2 * width + 1) - ((2 * width + 1) ** 2 - 8 * entries) ** 0.5) / 2)


def _root_or_one(squares_M: Array) -> Array:
    scale_M = squares_M**0.5
    return scale_M + (scale_M == 0)

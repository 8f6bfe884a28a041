"""Sums at rest: what is stored between lessons, in the fewest bits that cost no accuracy.

The pooled scatter rests as its upper factor U (U^T U = S), packed without its zeros, each column
divided by the root of its sum of squares. Half precision is enough for a factor: rounding U hardly
moves S in the directions in which S is small, where rounding S itself would make it indefinite.
Class means rest as differences from their mean, in 16-bit steps for each column: that rounds them
much less than half precision, which costs up to 0.2 points.

A class record rests by itself, whatever other classes there are: it is written once, and models can
hand it on. Its numbers are whole numbers of steps, and a few neighbouring columns share a step: 16
bits for the mean, 8 bits for the directions and the root of the rest.
"""

from copy import copy
from itertools import accumulate
from typing import Literal

import numpy as np

from dafuse.heads.arrays import Array, exact, library, zeros
from dafuse.heads.scatter import ClasswiseScatter, PooledScatter
from dafuse.heads.sums import ClassSums

Precision = Literal["float16", "float32", "float64"]
LEAST: Precision = "float16"  # of the factor; means and records as described above
STEPS = {"int8": 127, "int16": 32767}  # max number of steps to either side of zero
NOTHING = 1e-30  # smaller numbers count as zero, so that no step is zero
Kind = Literal["int8", "int16"]
RECORDS: dict[str, tuple[Kind, int]] = {  # bits of a number, and columns that share a step
    "means": ("int16", 16),
    "directions": ("int8", 96),
    "rest": ("int8", 96),
}


def at_rest(sums: ClassSums, precision: Precision) -> dict[str, Array]:
    """Return arrays that hold all that the sums know, in this precision."""
    if isinstance(sums.scatter, ClasswiseScatter):
        return _records_at_rest(sums, sums.scatter, precision)
    assert isinstance(sums.scatter, PooledScatter)
    found = {"counts": sums.counts_C}
    if precision == LEAST:
        centre_M = sums.means_CM.mean(0) if sums.classes else sums.means_CM.sum(0)
        found["centre"] = cast(centre_M, "float32")
        apart_CM = sums.means_CM - exact(found["centre"])
        found["means"], found["means_step"] = in_steps(apart_CM, "int16")
    else:
        found["means"] = cast(sums.means_CM, precision)
    factor_KM = sums.scatter.factor()
    scale_M = _root_or_one((factor_KM**2).sum(0))
    found["scale"] = cast(scale_M, "float64" if precision == "float64" else "float32")
    found["factor"] = _packed(cast(factor_KM / scale_M, precision))
    return found


def awake(sums: ClassSums, resting: dict[str, Array]) -> None:
    """Restore the sums from these arrays."""
    sums.counts_C = exact(resting["counts"])
    if isinstance(sums.scatter, ClasswiseScatter):
        sums.means_CM = _woken(resting, "means")
        sums.scatter.directions_CRM = _woken(resting, "directions")
        sums.scatter.rest_CM = _woken(resting, "rest") ** 2
    elif isinstance(sums.scatter, PooledScatter):
        sums.means_CM = exact(resting["means"])
        if "centre" in resting:
            sums.means_CM = sums.means_CM * exact(resting["means_step"]) + exact(resting["centre"])
        scale_M = exact(resting["scale"])
        sums.scatter.set_factor(_unpacked(resting["factor"], len(scale_M)) * scale_M)


def _records_at_rest(
    sums: ClassSums, scatter: ClasswiseScatter, precision: Precision
) -> dict[str, Array]:
    """Return arrays whose first axis is the classes; the entry of a class depends on no other."""
    found = {"counts": sums.counts_C}
    parts = {
        "means": sums.means_CM,
        "directions": scatter.directions_CRM,
        "rest": scatter.rest_CM**0.5,
    }
    for name, part in parts.items():
        if precision == LEAST:
            found[name], found[f"{name}_step"] = in_shared_steps(part, *RECORDS[name])
        else:
            found[name] = cast(part, precision)
    return found


def rounded(sums: ClassSums, precision: Precision) -> tuple[ClassSums, dict[str, Array]]:
    """Return the sums as they will be restored, and their stored form; `sums` does not change."""
    resting = at_rest(sums, precision)
    later = copy(sums)
    later.scatter = copy(sums.scatter)
    awake(later, resting)
    return later, resting


def in_steps(array_KM: Array, kind: Kind) -> tuple[Array, Array]:
    """Return whole numbers of steps, and the step of each column, which fits its largest number."""
    xp, array_KM = library(array_KM), exact(array_KM)
    largest = xp.amax(abs(array_KM), 0) if len(array_KM) else array_KM.sum(0)
    step_M = cast((largest + (largest < NOTHING)) / STEPS[kind], "float32")
    return cast(xp.round(array_KM / exact(step_M)), kind), step_M


def in_shared_steps(array: Array, kind: Kind, columns: int) -> tuple[Array, Array]:
    """Return whole numbers of steps shared by columns of a row: [..., M] and [..., M / columns].

    The last step has fewer columns if they do not divide evenly.
    """
    xp, array = library(array), exact(array)
    width = array.shape[-1]
    starts = range(0, width, columns)
    largest = [xp.amax(abs(array[..., start : start + columns]), -1) for start in starts]
    most = xp.stack(largest, -1)
    step = cast((most + (most < NOTHING)) / STEPS[kind], "float32")
    return cast(xp.round(array / spread_step(step, columns, width)), kind), step


def spread_step(step: Array, columns: int, width: int) -> Array:
    """Return the step of each column."""
    wide = exact(step)[..., None] + zeros(step, columns)
    return wide.reshape(*step.shape[:-1], step.shape[-1] * columns)[..., :width]


def cast(array: Array, precision: str) -> Array:
    xp = library(array)
    return array.astype(precision) if xp is np else array.to(getattr(xp, precision))


def _woken(resting: dict[str, Array], name: str) -> Array:
    """Return the numbers of one part of the records."""
    numbers, step = exact(resting[name]), resting.get(f"{name}_step")
    if step is None:
        return numbers
    return numbers * spread_step(step, RECORDS[name][1], numbers.shape[-1])


def _packed(factor_KM: Array) -> Array:
    """Return the rows one after another, without the zeros before the diagonal."""
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
    """Return the number of rows k of an upper factor with so many entries: k w - k (k - 1) / 2."""
    return round(((2 * width + 1) - ((2 * width + 1) ** 2 - 8 * entries) ** 0.5) / 2)


def _root_or_one(squares_M: Array) -> Array:
    scale_M = squares_M**0.5
    return scale_M + (scale_M == 0)

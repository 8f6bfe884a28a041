"""Linear algebra on operations that numpy and torch share, so that one algebra serves both.

An `Array` is a numpy array or a torch tensor. A result has the library and the device of its
argument. Sums over images are in float64 (`exact`).
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from dafuse.errors import DafuseError

Array = Any  # numpy.ndarray or torch.Tensor


def under(start: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin with this prefix, by the rest of their names."""
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }


def library(array: Array) -> ModuleType:
    """Return the module whose functions work on this array: numpy or torch."""
    return sys.modules["torch"] if type(array).__module__.startswith("torch") else np


def exact(array: Array) -> Array:
    """Return the same numbers in float64; on the CPU if the device has no float64."""
    if library(array) is np:
        return array.astype(np.float64)
    device = "cpu" if array.device.type == "mps" else array.device
    return array.to(device, sys.modules["torch"].float64)


def zeros(like: Array, *shape: int) -> Array:
    """Return zeros in float64, in the library and on the device of `like`."""
    xp = library(like)
    if xp is np:
        return np.zeros(shape)
    return xp.zeros(shape, dtype=xp.float64, device=exact(like[:0]).device)


def on_cpu(array: Array) -> bool:
    return library(array) is np or array.device.type == "cpu"


def to_numpy(array: Array) -> np.ndarray:
    return array if library(array) is np else array.detach().cpu().numpy()


def from_numpy(values: np.ndarray, like: Array) -> Array:
    """Return these numbers in the library and on the device of `like`, in their own precision."""
    xp = library(like)
    return values if xp is np else xp.from_numpy(np.ascontiguousarray(values)).to(like.device)


def beside(array: Array, like: Array) -> Array:
    """Return the array on the device of `like`."""
    return array if library(like) is np else array.to(like.device)


def check_finite(array: Array, what: str) -> None:
    """Refuse numbers that are not finite, which training that diverged leaves."""
    if not library(array).isfinite(array).all():
        raise DafuseError(f"{what} are not finite; if the method trains, try a smaller lr")


def one_hot(labels_N: Array, classes: int, like: Array) -> Array:
    """Return one-hot labels [N, C] in float64."""
    xp = library(like)
    row_1C = from_numpy(np.arange(classes)[None], labels_N)
    hot_NC = labels_N[:, None] == row_1C
    return hot_NC.astype(np.float64) if xp is np else exact(hot_NC).to(exact(like[:0]).device)


def solve(matrix_MM: Array, columns_MK: Array) -> Array:
    """Return X of ``matrix X = columns``, for a symmetric positive definite matrix."""
    xp = library(matrix_MM)
    if xp is np:
        return np.linalg.solve(matrix_MM, columns_MK)
    lower_MM, failed = xp.linalg.cholesky_ex(matrix_MM)
    if failed:  # semi-definite up to rounding
        return xp.linalg.solve(matrix_MM, columns_MK)
    return xp.cholesky_solve(columns_MK, lower_MM)


def add_to_diagonal(matrix_MM: Array, value: Any) -> Array:
    """Return a copy with one number, or one for each entry, added to the diagonal."""
    xp = library(matrix_MM)
    copy = matrix_MM.copy() if xp is np else matrix_MM.clone()
    steps = slice(None, None, len(copy) + 1)
    copy.reshape(-1)[steps] += value
    return copy

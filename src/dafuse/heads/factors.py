"""Upper factors: U [K, M], K <= M, zero below its diagonal, with U^T U = S for a scatter S.

A factor holds S in half as many numbers and survives rounding, since U^T U is never indefinite.
Householder reflections join more rows X to it, a block of columns at a time,

    [U; X] = Q [U'; 0],    so that U'^T U' = U^T U + X^T X,

which for few rows is much less work than forming S and factorising it again.
"""

from collections.abc import Iterator

import numpy as np

from dafuse.heads.arrays import Array, add_to_diagonal, library, zeros

BLOCK = 96  # columns in a block


def factor_of_rows(rows_KM: Array) -> Array:
    """Return the factor of X^T X, with as many rows as X has, or as columns if these are fewer."""
    if not len(rows_KM):
        return rows_KM
    xp = library(rows_KM)
    found = xp.linalg.qr(rows_KM, mode="r")
    return _signed(found if xp is np else found.R)


def factor_of_square(square_MM: Array) -> Array:
    """Return the factor of a matrix S that may lack full rank."""
    xp = library(square_MM)
    mean = float(square_MM.trace()) / max(1, len(square_MM))
    if mean <= 0:  # all images are the same: no scatter
        return 0 * square_MM
    for share in jitters():
        nudged_MM = add_to_diagonal(square_MM, share * mean) if share else square_MM
        if xp is np:
            try:
                return np.linalg.cholesky(nudged_MM).T
            except np.linalg.LinAlgError:
                continue
        lower_MM, failed = xp.linalg.cholesky_ex(nudged_MM)
        if not failed:
            return lower_MM.T
    raise ArithmeticError("the scatter is not positive semi-definite")


def joined(upper_KM: Array, rows_NM: Array) -> Array:
    """Return the factor of U^T U + X^T X.

    The reflections of a block of columns are I - V T V^T. As U is upper, V has the identity on
    top, so only its lower part V2 is needed, which belongs to the rows X.
    """
    xp = library(upper_KM)
    upper_KM, rest_NM = upper_KM + 0, rows_NM + 0
    height, width = upper_KM.shape
    for start in range(0, height, BLOCK):
        end = min(start + BLOCK, height)
        panel = xp.concatenate([upper_KM[start:end, start:end], rest_NM[:, start:end]])
        found, tau_B = _reflected(panel)
        upper_KM[start:end, start:end] = xp.triu(found[: end - start])
        below_NB = found[end - start :]  # V2
        still = tau_B == 0  # columns that needed no reflection
        inverse_B = xp.where(still, 1e150 + 0 * tau_B, 1 / (tau_B + still))
        t_BB = xp.linalg.inv(xp.triu(below_NB.T @ below_NB, 1) + xp.diag(inverse_B))
        if end < width:
            turned_BR = t_BB.T @ (upper_KM[start:end, end:] + below_NB.T @ rest_NM[:, end:])
            upper_KM[start:end, end:] -= turned_BR
            rest_NM[:, end:] -= below_NB @ turned_BR
    if height < width:  # the rest of the rows has columns of its own
        last = factor_of_rows(rest_NM[:, height:])
        padded = xp.concatenate([zeros(upper_KM, len(last), height), last], 1)
        upper_KM = xp.concatenate([upper_KM, padded])
    return _signed(upper_KM)


def squared(upper_KM: Array, rows_NM: Array) -> Array:
    """Return U^T U + X^T X, skipping most products with zeros and doing each other one once."""
    height, width = upper_KM.shape
    square_MM = zeros(upper_KM, width, width)
    step = max(1, width // 16)
    for start in range(0, width, step):
        end = min(start + step, width)
        above = upper_KM[: min(end, height)]  # zeros below
        square_MM[start:end, start:] = above[:, start:end].T @ above[:, start:]
        square_MM[start:end, start:] += rows_NM[:, start:end].T @ rows_NM[:, start:]
        square_MM[end:, start:end] = square_MM[start:end, end:].T
    return square_MM


def solved_forward(upper_MM: Array, columns_MK: Array) -> Array:
    """Return X of ``U^T X = columns``."""
    xp = library(upper_MM)
    if xp is not np:
        return xp.linalg.solve_triangular(upper_MM.T, columns_MK, upper=False)
    found_MK = columns_MK.copy()
    for start, end, inverse_BB in _diagonal_blocks(upper_MM):
        found_MK[start:end] = inverse_BB.T @ found_MK[start:end]
        found_MK[end:] -= upper_MM[start:end, end:].T @ found_MK[start:end]
    return found_MK


def solved_backward(upper_MM: Array, columns_MK: Array) -> Array:
    """Return X of ``U X = columns``."""
    xp = library(upper_MM)
    if xp is not np:
        return xp.linalg.solve_triangular(upper_MM, columns_MK, upper=True)
    found_MK = columns_MK.copy()
    for start, end, inverse_BB in reversed(list(_diagonal_blocks(upper_MM))):
        found_MK[start:end] -= upper_MM[start:end, end:] @ found_MK[end:]
        found_MK[start:end] = inverse_BB @ found_MK[start:end]
    return found_MK


def _diagonal_blocks(upper_MM: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each block's start, end and inverse; numpy has no triangular solver."""
    for start in range(0, len(upper_MM), BLOCK):
        end = min(start + BLOCK, len(upper_MM))
        yield start, end, np.linalg.inv(upper_MM[start:end, start:end])


def _reflected(matrix_NB: Array) -> tuple[Array, Array]:
    """Return a QR decomposition in LAPACK's form: R above the reflections [N, B]; scales [B]."""
    xp = library(matrix_NB)
    if xp is np:
        found_BN, tau_B = np.linalg.qr(matrix_NB, mode="raw")
        return found_BN.T, tau_B
    found = xp.geqrf(matrix_NB)
    return found.a, found.tau


def jitters() -> Iterator[float]:
    """Yield shares of the mean diagonal that make a matrix of deficient rank definite."""
    yield 0.0
    for power in range(-14, 1):
        yield 10.0**power


def _signed(upper_KM: Array) -> Array:
    """Make the diagonal non-negative, which makes the factor unique."""
    signs_K = library(upper_KM).sign(upper_KM.diagonal())
    upper_KM *= (signs_K + (signs_K == 0))[:, None]
    return upper_KM

"""Calibration: how far probabilities are from the accuracy that they promise."""

import math

import numpy as np


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error: |confidence - accuracy|, over equal-width bins."""
    if not len(confidence_N):
        return math.nan
    which = np.minimum((confidence_N * bins).astype(int), bins - 1)
    gaps = np.bincount(which, confidence_N - correct_N, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence_N))

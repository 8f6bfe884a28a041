"""Whether probabilities mean what they say."""

import math

import numpy as np


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: how far confidence is from accuracy, over equal bins of it."""
    if not len(confidence_N):
        return math.nan
    which = np.minimum((confidence_N * bins).astype(int), bins - 1)
    gaps = np.bincount(which, confidence_N - correct_N, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence_N))

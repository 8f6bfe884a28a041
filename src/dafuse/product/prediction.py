"""What an image was taken for. No torch here: exported models answer with it, too."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dafuse.errors import DafuseError


@dataclass(frozen=True)
class Prediction:
    """What an image was taken for."""

    name: str  # of the class; "unknown" where it is like none of them
    probability: float  # of the most probable class, also where the answer is unknown
    unknown: bool
    familiarity: float  # unknown below the threshold
    top: list[tuple[str, float]]  # the most probable classes with their probabilities


def predicted(
    names: Sequence[str],
    probabilities_C: np.ndarray,
    familiarity: float,
    threshold: float,
    top: int = 1,
) -> Prediction:
    if top < 1:
        raise DafuseError(f"top must be at least 1, not {top}")
    best = np.argsort(-probabilities_C, kind="stable")[:top]
    named = [(names[row], float(probabilities_C[row])) for row in best]
    unknown = familiarity < threshold
    name, probability = named[0]
    return Prediction("unknown" if unknown else name, probability, unknown, familiarity, named)

"""From scores to probabilities: bent, in a unit of their own, and divided by a temperature.

    logit_k = asinh(6 s_k) / asinh(6) * sqrt(ln K) / t,    s = scores / u

Scores are measured in u, by which a class mean's own score is above those of the other classes on
average: a large penalty shrinks all scores alike. They estimate probabilities. A softmax
wants logarithms, and asinh is like a logarithm but takes negative numbers too. The highest of K
scores that mean nothing grows with the root of ln K. After all that one temperature t suits 5 to
100 classes of 1 to 450 images (docs/lift.md); images that are left out of a lesson correct it.
"""

import math
from dataclasses import dataclass

import numpy as np

from dafuse.heads.arrays import Array, library, to_numpy
from dafuse.heads.closed_form import Linear

BEND = 6.0
TYPICAL = 0.235  # on held-out training images of CIFAR-100
TRUST = 3000  # images left out that count as much as the typical temperature


@dataclass(frozen=True)
class Temperature:
    """What is known of t."""

    value: float = TYPICAL
    images: int = 0  # that were left out, in all lessons

    def after(self, scores_NC: np.ndarray, labels_N: np.ndarray) -> "Temperature":
        """When these images have been left out, too: a geometric mean over all of them."""
        count = len(labels_N)
        if not count or scores_NC.shape[1] < 2:
            return self
        best = best_temperature(calibrated(scores_NC, 1.0), labels_N)
        known = TRUST + self.images
        mean = (known * math.log(self.value) + count * math.log(best)) / (known + count)
        return Temperature(math.exp(mean), self.images + count)


def calibrated(scores_NC: Array, temperature: float) -> Array:
    """The logits, which a softmax turns into probabilities; the order of the classes stays."""
    classes = max(2, scores_NC.shape[-1])
    scale = math.sqrt(math.log(classes)) / math.asinh(BEND) / temperature
    return library(scores_NC).arcsinh(BEND * scores_NC) * scale


def unit_of(head: Linear, means_CM: Array) -> float:
    """u, from the class means; 1 where they do not tell the classes apart."""
    scores_CC, classes = to_numpy(head.scores(means_CM)), len(means_CM)
    own = float(scores_CC.diagonal().sum())
    others = (float(scores_CC.sum()) - own) / max(1, classes - 1)
    unit = (own - others) / classes
    return unit if classes > 1 and unit > 0 else 1.0


def best_temperature(logits_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """T of the least mean cross-entropy of softmax(logits / T).

    Where all of N images are right, as if one of N + 2 were not, so that it stays finite. The loss
    is convex in 1 / T; bisection finds where its derivative is zero.
    """
    spread = float(logits_NC.std()) or 1.0
    scores = (logits_NC - logits_NC.max(1, keepdims=True)) / spread
    own = scores[np.arange(len(labels_N)), labels_N]
    others = (scores.sum(1) - own) / max(1, scores.shape[1] - 1)
    own = own + (others - own) / (len(labels_N) + 2)
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = (low * high) ** 0.5
        weights = np.exp(middle * scores)
        weights /= weights.sum(1, keepdims=True)
        slope = float(((weights * scores).sum(1) - own).mean())
        low, high = (middle, high) if slope < 0 else (low, middle)
    return spread / (low * high) ** 0.5

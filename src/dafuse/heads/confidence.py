"""Scores made probabilities: scaled to a unit, bent by asinh, divided by a temperature.

    logit_k = asinh(6 s_k) / asinh(6) * sqrt(ln K) / t,    s = scores / u

The unit u is how far a class mean's own score is above those of the other classes, on average,
because a large penalty shrinks all scores alike. Scores estimate probabilities, but a softmax needs
logarithms: asinh is like a logarithm and takes negative numbers too. The highest of K random scores
grows with the root of ln K. After these steps one temperature t suits 5 to 100 classes of 1 to 450
images (docs/lift.md), and leave-one-out scores of each lesson correct it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dafuse.heads.arrays import Array, library, to_numpy
from dafuse.heads.closed_form import FEW_CLASSES, Linear
from dafuse.heads.head import NEVER

BEND = 6.0
TYPICAL = 0.235  # measured on held-out training images of CIFAR-100
REFUSED = 0.05  # share of the images of known classes that may be answered "unknown"
FADING = 3  # power of the share of classes that were known at the time
LEAST_TESTED = 5  # fewer images do not show how far others spread
Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Temperature:
    """An estimate of t: a geometric mean of the initial value and all leave-one-out images."""

    value: float = TYPICAL
    images: int = 0  # left out in turn, over all lessons
    trust: ClassVar[int] = 3000  # weight of the initial value, in images

    def after(self, scores_NC: np.ndarray, labels_N: np.ndarray) -> Self:
        """Return the estimate after these leave-one-out scores."""
        return self.after_logits(calibrated(scores_NC, 1.0), labels_N)

    def after_logits(self, logits_NC: np.ndarray, labels_N: np.ndarray) -> Self:
        """Return the estimate after these logits, which need not come from bent scores."""
        count = len(labels_N)
        if not count or logits_NC.shape[1] < 2:
            return self
        best = best_temperature(logits_NC, labels_N)
        value = geometric_mean(self.value, self.trust + self.images, best, count)
        return replace(self, value=value, images=self.images + count)

    def joined(self, other: Self) -> Self:
        """Return the estimate from the images of both classifiers."""
        mine, theirs = self.trust / 2 + self.images, other.trust / 2 + other.images
        value = geometric_mean(self.value, mine, other.value, theirs)
        return replace(self, value=value, images=self.images + other.images)

    def numbers(self) -> dict[str, float]:
        return {"temperature": self.value, "temperature_images": float(self.images)}

    @classmethod
    def from_numbers(cls, numbers: Numbers) -> Self:
        return cls(numbers["temperature"], int(numbers["temperature_images"]))


class QuickTemperature(Temperature):
    """A temperature whose initial value weighs less, so that fewer images move it."""

    trust: ClassVar[int] = 100


@dataclass(frozen=True)
class Threshold:
    """An estimate of the familiarity below which an image is answered "unknown"."""

    value: float = NEVER
    images: float = 0.0  # left out in turn, over all lessons; older ones have faded
    classes: int = 0  # number of classes at the last lesson

    def after(self, familiarity_N: np.ndarray, classes: int) -> "Threshold":
        """Return the estimate after images of this familiarity: a mean over lessons.

        Familiarity moves as classes are added, and old images are not there to measure by how much,
        so their weight fades.
        """
        count = len(familiarity_N)
        if count < LEAST_TESTED:
            return self
        found = float(np.quantile(familiarity_N, REFUSED, method="weibull"))
        if not self.images:
            return Threshold(found, count, classes)
        before = self.images * min(1.0, self.classes / classes) ** FADING
        value = (before * self.value + count * found) / (before + count)
        return Threshold(value, before + count, classes)

    def joined(self, other: "Threshold") -> "Threshold":
        """Return the estimate from the images of both classifiers."""
        images = self.images + other.images
        if not images:
            return self
        value = (self.images * self.value + other.images * other.value) / images
        return Threshold(value, images, max(self.classes, other.classes))

    def numbers(self) -> dict[str, float]:
        """Return all numbers but the value, which `Head.numbers` has."""
        return {"threshold_images": float(self.images), "threshold_classes": float(self.classes)}

    @classmethod
    def from_numbers(cls, numbers: Numbers, classes: int) -> "Threshold":
        """Read the estimate of a model of so many classes; older models lack some numbers."""
        images = numbers.get("threshold_images", 0.0)
        return cls(numbers["threshold"], images, int(numbers.get("threshold_classes", classes)))


def sharpness(classes: int, temperature: float) -> float:
    """Return the factor that turns the bent scores of so many classes into logits."""
    return math.sqrt(math.log(max(2, classes))) / math.asinh(BEND) / temperature


def calibrated(scores_NC: Array, temperature: float) -> Array:
    """Return the logits, whose softmax is the probability; the order of the classes stays."""
    bent_NC = library(scores_NC).arcsinh(BEND * scores_NC)
    return bent_NC * sharpness(scores_NC.shape[-1], temperature)


def unit_of(head: Linear, means_CM: Array) -> float:
    """Return u from the class means; 1 if they do not tell the classes apart."""
    classes = len(means_CM)
    if classes <= FEW_CLASSES:
        scores_CC = to_numpy(head.scores(means_CM))
        own, in_all = float(scores_CC.diagonal().sum()), float(scores_CC.sum())
    else:  # the same two sums without the scores of each class for each other
        bias = float(head.bias_C.sum())
        own = float((means_CM * head.weights_MC.T).sum()) + bias
        in_all = float((means_CM.sum(0) @ head.weights_MC).sum()) + classes * bias
    others = (in_all - own) / max(1, classes - 1)
    unit = (own - others) / classes
    return unit if classes > 1 and unit > 0 else 1.0


def geometric_mean(one: float, its_weight: float, other: float, weight: float) -> float:
    """Return the weighted geometric mean of two positive numbers."""
    total = its_weight * math.log(one) + weight * math.log(other)
    return math.exp(total / (its_weight + weight))


def best_temperature(logits_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the T with the least mean cross-entropy of softmax(logits / T).

    If all N images are right, it counts as if one of N + 2 were not, so that T is not zero. The
    loss is convex in 1 / T; bisection finds the zero of its derivative.
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


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error: |confidence - accuracy|, over equal-width bins."""
    if not len(confidence_N):
        return math.nan
    which = np.minimum((confidence_N * bins).astype(int), bins - 1)
    gaps = np.bincount(which, confidence_N - correct_N, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence_N))

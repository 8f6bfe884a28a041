"""The part of a classifier that predicts: plain arrays, whatever method they come from.

    scores = f W^T + b,    logits = sharpness * bent(scores),    probabilities = softmax(logits)

Features and weights may be divided by their length first, and scores bent by asinh
(`heads.confidence`). `sharpness` is 1 / temperature. The familiarity of an image is its energy
score, the log-sum-exp of the scores, or the number that `heads.familiarity` computes: it is large
for images like those of the known classes, and below the threshold the answer is "unknown". No
torch here: `product.export` writes the same computation as an ONNX graph.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dafuse.heads.familiarity import Familiarity

Numbers = dict[str, float]
NEVER = -1e30  # a threshold below all images; JSON has no infinity


class Answers(NamedTuple):
    """Probabilities and familiarity of a batch of images."""

    probabilities_NC: np.ndarray
    familiarity_N: np.ndarray


@dataclass(frozen=True)
class Head:
    """A linear classifier with its calibration. It never changes."""

    weights_CF: np.ndarray  # float32, or int16 in steps
    bias_C: np.ndarray
    step_F: np.ndarray | None = None  # the step of each column, if the weights are int16
    cosine: bool = False  # features and weights are divided by their length first
    bend: float = 0.0  # scores become asinh(bend * score); 0 leaves them as they are
    sharpness: float = 1.0  # 1 / temperature: factor from (bent) scores to logits
    energy: float = 1.0  # factor of the scores in the energy score
    threshold: float = NEVER  # familiarity below which an image is answered "unknown"
    likeness: Familiarity | None = None  # replaces the energy score

    @property
    def classes(self) -> int:
        return len(self.bias_C)

    @cached_property
    def weights_FC(self) -> np.ndarray:
        """The weights in float32, for products."""
        weights_CF = self.weights_CF.astype(np.float32)
        if self.step_F is not None:
            weights_CF *= self.step_F
        if self.cosine:
            weights_CF = _unit(weights_CF)
        return weights_CF.T  # a view: copying it into this order takes longer than one prediction

    def answers(self, feats_NF: np.ndarray) -> Answers:
        scores_NC = self.scores(feats_NF)
        familiarity_N = (
            self.energies(scores_NC)
            if self.likeness is None
            else self.likeness(scores_NC, feats_NF)
        )
        return Answers(self.probabilities(scores_NC), familiarity_N)

    def scores(self, feats_NF: np.ndarray) -> np.ndarray:
        """Return scores [N, C], not calibrated."""
        if self.cosine:
            feats_NF = _unit(feats_NF)
        return feats_NF @ self.weights_FC + self.bias_C

    def probabilities(self, scores_NC: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities, of one image or many."""
        found_NC: np.ndarray  # each step in its place: new memory costs more than the step
        if self.bend:
            found_NC = self.bend * scores_NC
            found_NC = np.arcsinh(found_NC, out=found_NC)
            found_NC *= self.sharpness
        else:
            found_NC = self.sharpness * scores_NC
        found_NC -= found_NC.max(-1, keepdims=True)
        found_NC = np.exp(found_NC, out=found_NC)
        found_NC /= found_NC.sum(-1, keepdims=True)
        return found_NC

    def energies(self, scores_NC: np.ndarray) -> np.ndarray:
        """Return energy scores [N], the log-sum-exp of the scores: large for familiar images."""
        scaled_NC = self.energy * scores_NC
        most_N = scaled_NC.max(-1)
        sums_N = np.exp(scaled_NC - most_N[..., None]).sum(-1)
        return most_N + np.log(sums_N)

    def arrays(self) -> dict[str, np.ndarray]:
        found = {"weights": self.weights_CF, "bias": self.bias_C}
        if self.step_F is not None:
            found["step"] = self.step_F
        return found if self.likeness is None else {**found, **self.likeness.arrays()}

    def numbers(self) -> Numbers:
        return {
            "cosine": float(self.cosine),
            "bend": self.bend,
            "sharpness": self.sharpness,
            "energy": self.energy,
            "threshold": self.threshold,
            **({} if self.likeness is None else self.likeness.numbers()),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], numbers: Numbers) -> "Head":
        """Read the arrays and numbers; raise `ValueError` if they are no classifier."""
        weights_CF, bias_C, step_F = arrays["weights"], arrays["bias"], arrays.get("step")
        known = {
            name: float(numbers[name]) for name in ("bend", "sharpness", "energy", "threshold")
        }
        if weights_CF.ndim != 2 or bias_C.shape != weights_CF.shape[:1]:
            raise ValueError("there is not one weight vector and one bias for each class")
        if step_F is not None and step_F.shape != weights_CF.shape[1:]:
            raise ValueError("there is not one step for each column of the weights")
        if not 0 < known["sharpness"] < math.inf or math.isnan(known["threshold"]):
            raise ValueError("the calibration is out of range")
        likeness = Familiarity.from_arrays(arrays, numbers) if "mix" in arrays else None
        if likeness is not None and likeness.columns.stop > weights_CF.shape[1]:
            raise ValueError("familiarity has more columns than the weights")
        if likeness is not None and likeness.own_C.shape != bias_C.shape:
            raise ValueError("familiarity has other classes than the weights")
        cosine = bool(numbers["cosine"])
        return cls(weights_CF, bias_C, step_F, cosine, likeness=likeness, **known)


def _unit(rows_ND: np.ndarray) -> np.ndarray:
    """Return the rows at length 1."""
    length_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.maximum(length_N1, 1e-12)

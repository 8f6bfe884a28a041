"""How features become answers: plain arrays that predict, whatever method they come from.

    scores = f W^T + b,    logits = sharpness * bent(scores),    probabilities = softmax(logits)

Features and weights may be divided by their length first, and scores bent by asinh
(`heads.confidence`). The familiarity of an image says how much it is like the classes known; below
the threshold the answer is "unknown". It is the log-sum-exp of the scores, or what
`heads.familiarity` computes. No torch here: `product.export` writes the same as an ONNX graph.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dafuse.heads.familiarity import Familiarity

Numbers = dict[str, float]
NEVER = -1e30  # a threshold that no image is below; JSON has no infinity


class Answers(NamedTuple):
    """What a batch of images is answered."""

    probabilities_NC: np.ndarray
    familiarity_N: np.ndarray


@dataclass(frozen=True)
class Head:
    """A linear classifier and how sure it is. It never changes."""

    weights_CF: np.ndarray  # float32, or int16 in steps
    bias_C: np.ndarray
    step_F: np.ndarray | None = None  # of weights in int16
    cosine: bool = False  # features and weights are divided by their length first
    bend: float = 0.0  # scores become asinh(bend * score); 0 leaves them as they are
    sharpness: float = 1.0  # what (bent) scores are multiplied by to be logits
    energy: float = 1.0  # what scores are multiplied by for the familiarity
    threshold: float = NEVER  # familiarity below which an image is answered "unknown"
    likeness: Familiarity | None = None  # in place of the log-sum-exp

    @property
    def classes(self) -> int:
        return len(self.bias_C)

    @cached_property
    def weights_FC(self) -> np.ndarray:
        """Float32, as they are multiplied."""
        weights_CF = self.weights_CF.astype(np.float32)
        if self.step_F is not None:
            weights_CF *= self.step_F
        if self.cosine:
            weights_CF = _unit(weights_CF)
        return weights_CF.T  # a view: a copy in that order takes longer than one prediction

    def answers(self, feats_NF: np.ndarray) -> Answers:
        scores_NC = self.scores(feats_NF)
        familiarity_N = (
            self.energies(scores_NC)
            if self.likeness is None
            else self.likeness(scores_NC, feats_NF)
        )
        return Answers(self.probabilities(scores_NC), familiarity_N)

    def scores(self, feats_NF: np.ndarray) -> np.ndarray:
        """[N, C], not calibrated."""
        if self.cosine:
            feats_NF = _unit(feats_NF)
        return feats_NF @ self.weights_FC + self.bias_C

    def probabilities(self, scores_NC: np.ndarray) -> np.ndarray:
        """Calibrated; of one image or many."""
        bent_NC = np.arcsinh(self.bend * scores_NC) if self.bend else scores_NC
        logits_NC = self.sharpness * bent_NC
        shares_NC = np.exp(logits_NC - logits_NC.max(-1, keepdims=True))
        shares_NC /= shares_NC.sum(-1, keepdims=True)
        return shares_NC

    def energies(self, scores_NC: np.ndarray) -> np.ndarray:
        """[N]; large for images like those of some class: the log-sum-exp of the scores."""
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
        """Refuses, by `ValueError`, what no classifier can be."""
        weights_CF, bias_C, step_F = arrays["weights"], arrays["bias"], arrays.get("step")
        known = {
            name: float(numbers[name]) for name in ("bend", "sharpness", "energy", "threshold")
        }
        if weights_CF.ndim != 2 or bias_C.shape != weights_CF.shape[:1]:
            raise ValueError("there is not one weight vector and one bias for each class")
        if step_F is not None and step_F.shape != weights_CF.shape[1:]:
            raise ValueError("there is not one step for each column of the weights")
        if not 0 < known["sharpness"] < math.inf or math.isnan(known["threshold"]):
            raise ValueError("the calibration is no number")
        likeness = Familiarity.from_arrays(arrays, numbers) if "mix" in arrays else None
        if likeness is not None and likeness.own_C.shape != bias_C.shape:
            raise ValueError("familiarity is of other classes than the weights")
        cosine = bool(numbers["cosine"])
        return cls(weights_CF, bias_C, step_F, cosine, likeness=likeness, **known)


def _unit(rows_ND: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    length_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.maximum(length_N1, 1e-12)

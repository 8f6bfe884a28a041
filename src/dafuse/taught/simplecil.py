"""SimpleCIL as people teach it: the mean feature of each class is its prototype, by numpy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dafuse.heads.confidence import REFUSED, best_temperature
from dafuse.heads.head import Head
from dafuse.taught import words
from dafuse.taught.contract import (
    CLASS,
    PREDICT,
    Arrays,
    Encode,
    Lesson,
    Numbers,
    Tested,
    named,
    refuse_unknown,
    under,
)
from dafuse.vit.extractor import Extractor

if TYPE_CHECKING:
    from onnx import ModelProto

TYPICAL = 20.0  # what cosines are multiplied by, before a lesson says better
TRUST = 100  # images that count as much as that


class TaughtSimpleCIL:
    """Class means of the last CLS token, told apart by cosines."""

    trains: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False
    remains: ClassVar[str] = words.SIMPLECIL.remains

    def __init__(self, eye: Extractor, settings: dict[str, Any], seed: int) -> None:
        self.eye = eye
        self.counts_C = np.zeros(0)
        self.sums_CD = np.zeros((0, eye.width))
        self.sharpness, self.threshold, self.tested = TYPICAL, 0.0, 0

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown("simplecil", given, [])
        return {}

    def learn(self, lesson: Lesson) -> Tested:
        assert lesson.feats_NF is not None
        feats_ND, labels_N = lesson.feats_NF.astype(np.float64), lesson.labels_N
        self._grow(len(lesson.names))
        np.add.at(self.sums_CD, labels_N, feats_ND)
        np.add.at(self.counts_C, labels_N, 1)
        others = self.counts_C[labels_N] > 1  # their class has another image
        feats_ND, labels_N = feats_ND[others], labels_N[others]
        cosines_NC = self._left_out(feats_ND, labels_N)
        self._calibrate(cosines_NC, labels_N)
        return Tested("each left out in turn", labels_N, cosines_NC.argmax(1))

    def drop(self, remaining: Sequence[int]) -> None:
        self.sums_CD, self.counts_C = self.sums_CD[list(remaining)], self.counts_C[list(remaining)]

    def merge(self, other: "TaughtSimpleCIL", numbers: Sequence[int]) -> None:
        self._grow(max(numbers, default=-1) + 1)
        self.sums_CD[list(numbers)] += other.sums_CD
        self.counts_C[list(numbers)] += other.counts_C
        mine, theirs = TRUST / 2 + self.tested, TRUST / 2 + other.tested
        share = theirs / (mine + theirs)
        self.sharpness = float(self.sharpness ** (1 - share) * other.sharpness**share)
        self.threshold = (1 - share) * self.threshold + share * other.threshold
        self.tested += other.tested

    def encoder(self, shared: Arrays) -> Encode:
        return lambda squares_B3SS: self.eye.encode(squares_B3SS, "last")

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.eye.graph("last")

    def head(self) -> Head:
        return Head(
            self.sums_CD.astype(np.float32),
            np.zeros(len(self.sums_CD), np.float32),
            cosine=True,
            sharpness=self.sharpness,
            energy=TYPICAL,
            threshold=self.threshold,
        )

    def arrays(self) -> Arrays:
        kept = {"counts": self.counts_C, "sums": self.sums_CD}
        return {**named(CLASS, kept), **named(PREDICT, self.head().arrays())}

    def numbers(self) -> Numbers:
        return {"tested": float(self.tested), **self.head().numbers()}

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        records = under(CLASS, arrays)
        self.counts_C, self.sums_CD = records["counts"].copy(), records["sums"].copy()
        self.sharpness, self.threshold = numbers["sharpness"], numbers["threshold"]
        self.tested = int(numbers["tested"])

    def _grow(self, classes: int) -> None:
        more = max(0, classes - len(self.counts_C))
        self.counts_C = np.concatenate([self.counts_C, np.zeros(more)])
        self.sums_CD = np.concatenate([self.sums_CD, np.zeros((more, self.eye.width))])

    def _left_out(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
        """Cosines [N, C] to the prototypes, each image's own without itself."""
        units_ND = feats_ND / np.linalg.norm(feats_ND, axis=1, keepdims=True)
        cosines_NC = units_ND @ (self.sums_CD / np.linalg.norm(self.sums_CD, axis=1)[:, None]).T
        others_ND = self.sums_CD[labels_N] - feats_ND
        own_N = (units_ND * others_ND).sum(1) / np.linalg.norm(others_ND, axis=1)
        cosines_NC[np.arange(len(labels_N)), labels_N] = own_N
        return cosines_NC

    def _calibrate(self, cosines_NC: np.ndarray, labels_N: np.ndarray) -> None:
        """Means over all lessons of what their images say, each left out in turn."""
        count, known = len(labels_N), TRUST + self.tested
        if not count or cosines_NC.shape[1] < 2:
            return
        best = 1 / best_temperature(cosines_NC, labels_N)
        self.sharpness = float(
            np.exp((known * np.log(self.sharpness) + count * np.log(best)) / (known + count))
        )
        familiar = float(np.quantile(self.head().energies(cosines_NC), REFUSED))
        self.threshold = (self.tested * self.threshold + count * familiar) / (self.tested + count)
        self.tested += count

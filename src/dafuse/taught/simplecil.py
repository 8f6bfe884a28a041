"""SimpleCIL as people teach it: the mean feature of each class is its prototype, by numpy."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dafuse.backbones.backbone import Backbone, Need
from dafuse.heads.confidence import QuickTemperature, Threshold
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

if TYPE_CHECKING:
    from onnx import ModelProto

TYPICAL = 20.0  # the initial factor of the cosines, before any lesson


class TaughtSimpleCIL:
    """Class means of the last CLS token, compared by cosine."""

    trains: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False
    encoder_reads_shared: ClassVar[bool] = False
    remains: ClassVar[str] = words.SIMPLECIL.remains

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None:
        self.extractor = extractor
        self.counts_C = np.zeros(0)
        self.sums_CD = np.zeros((0, extractor.width))
        self.temperature, self.threshold = QuickTemperature(1 / TYPICAL), Threshold()

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown("simplecil", given, [])
        return {}

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        return "features"

    @classmethod
    def takes(cls, settings: dict[str, Any]) -> Collection[str]:
        return ()

    def learn(self, lesson: Lesson) -> Tested:
        assert lesson.feats_NF is not None
        feats_ND, labels_N = lesson.feats_NF.astype(np.float64), lesson.labels_N
        classes = len(lesson.names)
        self.sums_CD, self.counts_C = self.sums_CD[:classes], self.counts_C[:classes]
        self._grow(classes)
        self.collect(feats_ND, labels_N)
        others = self.counts_C[labels_N] > 1  # whether their class has another image
        feats_ND, labels_N = feats_ND[others], labels_N[others]
        cosines_NC = self._left_out(feats_ND, labels_N)
        if len(self.counts_C) > 1:
            self.temperature = self.temperature.after_logits(cosines_NC, labels_N)
            familiarity_N = self.head().energies(cosines_NC)
            self.threshold = self.threshold.after(familiarity_N, len(self.counts_C))
        return Tested("each left out in turn", labels_N, cosines_NC.argmax(1))

    def collect(self, feats_NF: np.ndarray, labels_N: np.ndarray) -> None:
        self._grow(int(labels_N.max(initial=-1)) + 1)
        np.add.at(self.sums_CD, labels_N, feats_NF.astype(np.float64))
        np.add.at(self.counts_C, labels_N, 1)

    def collected(self) -> Arrays:
        return {"counts": self.counts_C, "sums": self.sums_CD}

    def take_up(self, collected: Arrays, numbers: Sequence[int], classes: int) -> None:
        self._grow(classes)
        self.sums_CD[list(numbers)] += collected["sums"]
        self.counts_C[list(numbers)] += collected["counts"]

    def drop(self, remaining: Sequence[int]) -> None:
        self.sums_CD, self.counts_C = self.sums_CD[list(remaining)], self.counts_C[list(remaining)]

    def merge(self, other: "TaughtSimpleCIL", numbers: Sequence[int]) -> None:
        self._grow(max(numbers, default=-1) + 1)
        self.sums_CD[list(numbers)] += other.sums_CD
        self.counts_C[list(numbers)] += other.counts_C
        self.temperature = self.temperature.joined(other.temperature)
        self.threshold = self.threshold.joined(other.threshold)

    def encoder(self, shared: Arrays) -> Encode:
        return lambda squares_B3SS: self.extractor.encode(squares_B3SS, "last")

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.extractor.graph("last")

    def head(self) -> Head:
        return Head(
            self.sums_CD.astype(np.float32),
            np.zeros(len(self.sums_CD), np.float32),
            cosine=True,
            sharpness=1 / self.temperature.value,
            energy=TYPICAL,
            threshold=self.threshold.value,
        )

    def arrays(self) -> Arrays:
        records = {"counts": self.counts_C, "sums": self.sums_CD}
        return {**named(CLASS, records), **named(PREDICT, self.head().arrays())}

    def numbers(self) -> Numbers:
        fitted = {**self.temperature.numbers(), **self.threshold.numbers()}
        return {**fitted, **self.head().numbers()}

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        records = under(CLASS, arrays)
        self.counts_C, self.sums_CD = records["counts"].copy(), records["sums"].copy()
        if "temperature" not in numbers:  # older models have one count for both
            sharpness, tested = numbers["sharpness"], numbers["tested"]
            older = {"temperature": 1 / sharpness, "temperature_images": tested}
            numbers = {**numbers, **older, "threshold_images": tested}
        self.temperature = QuickTemperature.from_numbers(numbers)
        self.threshold = Threshold.from_numbers(numbers, len(self.counts_C))

    def _grow(self, classes: int) -> None:
        more = max(0, classes - len(self.counts_C))
        self.counts_C = np.concatenate([self.counts_C, np.zeros(more)])
        self.sums_CD = np.concatenate([self.sums_CD, np.zeros((more, self.extractor.width))])

    def _left_out(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
        """Return cosines [N, C] to the prototypes, each image's own without the image itself."""
        units_ND = feats_ND / np.linalg.norm(feats_ND, axis=1, keepdims=True)
        cosines_NC = units_ND @ (self.sums_CD / np.linalg.norm(self.sums_CD, axis=1)[:, None]).T
        others_ND = self.sums_CD[labels_N] - feats_ND
        own_N = (units_ND * others_ND).sum(1) / np.linalg.norm(others_ND, axis=1)
        cosines_NC[np.arange(len(labels_N)), labels_N] = own_N
        return cosines_NC

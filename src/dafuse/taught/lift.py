"""`lift` as people teach it: sums of features of many blocks, solved in closed form, by numpy.

The record of a class is its number of images, their mean, and the scatter about it as a few
directions and a diagonal. The classifier is solved from the records. So a dropped class is gone
completely, and merged models know what one model taught everything would know. Nothing is held out:
each image is left out in turn to test the others.
"""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from dafuse.backbones.backbone import Backbone, Need
from dafuse.backbones.depths import Depths, place_of
from dafuse.heads.choice import Choice, Evidence
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.closed_form import KINDS
from dafuse.heads.confidence import BEND, Temperature, Threshold, sharpness
from dafuse.heads.head import Head
from dafuse.heads.resting import Precision
from dafuse.heads.sums import classwise, compact, from_compact
from dafuse.methods.lift_parts import HeadName, kinds_of, lift_of
from dafuse.methods.options import Range, require_valid
from dafuse.taught import words
from dafuse.taught.contract import (
    CLASS,
    PREDICT,
    SHARED,
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

PRECISION: Precision = "float16"  # of stored records: 16 bits for means, 8 for directions


@dataclass(frozen=True)
class LiftSettings:
    features: Depths = "moments"  # what to read from the network (`backbones.depths`)
    head: HeadName = "ridge"  # ridge regression, lda, or auto: the better one by leave-one-out
    # share of the mean diagonal; None: chosen by leave-one-out
    penalty: Annotated[float | None, Range(1e-12, 1e12)] = None
    rank: Annotated[int, Range(1, 1000)] = 16  # directions of a record


class TaughtLift:
    """A closed-form classifier on features of many blocks, with a record of each class."""

    trains: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False
    remains: ClassVar[str] = words.LIFT.remains

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None:
        self.extractor, self.features = extractor, settings["features"]
        self.rank = settings["rank"]
        like = np.zeros(0, np.float32)
        self.lift = lift_of(extractor, self.features, 0, seed, like)
        self.solved = ClosedForm(
            self.lift,
            classwise(self.lift.width, self.rank, like),
            kinds_of(settings["head"]),
            settings["penalty"],
            PRECISION,
            like,
            tokens_M=self.lift.tokens_M,
            last_token=_last_token(extractor, self.features),
        )
        self._head: Head | None = None  # as it was read, until something changes it

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown("lift", given, [each.name for each in fields(LiftSettings)])
        require_valid(LiftSettings, given)
        return asdict(LiftSettings(**given))

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        return "features"

    def learn(self, lesson: Lesson) -> Tested:
        assert lesson.feats_NF is not None
        self._head = None
        self.solved.cut_to(len(lesson.names))
        self.solved.learn(lesson.feats_NF, lesson.labels_N)
        return Tested("each left out in turn", *self.solved.tried)

    def collect(self, feats_NF: np.ndarray, labels_N: np.ndarray) -> None:
        self.solved.observe(feats_NF, labels_N)

    def collected(self) -> Arrays:
        return compact(self.solved.sums)

    def take_up(self, collected: Arrays, numbers: Sequence[int], classes: int) -> None:
        self._head = None
        self.solved.take_up(from_compact(collected, self.rank), numbers, classes)

    def drop(self, remaining: Sequence[int]) -> None:
        self._head = None
        self.solved.drop(remaining)

    def merge(self, other: "TaughtLift", numbers: Sequence[int]) -> None:
        self._head = None
        self.solved.merge(other.solved, numbers)

    def encoder(self, shared: Arrays) -> Encode:
        return lambda squares_B3SS: self.extractor.encode(squares_B3SS, self.features)

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.extractor.graph(self.features)

    def head(self) -> Head:
        if self._head is not None:
            return self._head
        solved = self.solved
        weights = solved.resting_weights
        return Head(
            weights["values"],
            solved.bias_C,
            weights["step"] * self.lift.weights_F,
            bend=BEND,
            sharpness=sharpness(len(solved.bias_C), solved.temperature.value),
            threshold=solved.threshold.value,
            likeness=solved.familiarity,
        )

    def arrays(self) -> Arrays:
        return {
            **named(CLASS, self.solved.resting),
            SHARED + "evidence": self.solved.evidence.array(),
            **named(PREDICT, self.head().arrays()),
        }

    def numbers(self) -> Numbers:
        solved = self.solved
        kind, *chosen = astuple(solved.choice)
        return {
            "kind": float(KINDS.index(kind)),
            **dict(zip(("penalty", "left_out", "accuracy"), map(float, chosen), strict=True)),
            **solved.temperature.numbers(),
            **solved.threshold.numbers(),
            **self.head().numbers(),
        }

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        weights = under(PREDICT, arrays)
        self._head = Head.from_arrays(weights, numbers) if weights else None
        self.solved.restore(
            under(CLASS, arrays),
            Choice(
                KINDS[int(numbers["kind"])],
                numbers["penalty"],
                int(numbers["left_out"]),
                numbers["accuracy"],
            ),
            Temperature.from_numbers(numbers),
        )
        if SHARED + "evidence" in arrays:  # older models have none
            self.solved.evidence = Evidence.from_array(arrays[SHARED + "evidence"])
        self.solved.threshold = Threshold.from_numbers(numbers, self.solved.sums.classes)
        if weights:
            step_F = weights["step"] / self.lift.weights_F
            self.solved.set_weights({"values": weights["weights"], "step": step_F}, weights["bias"])
        else:
            self.solved.solve_again()


def _last_token(extractor: Backbone, features: Depths) -> slice:
    """Return the columns of the last level's vector for the whole image; their weight is 1."""
    (last,) = extractor.parts("last")
    return place_of(last, extractor.parts(features))

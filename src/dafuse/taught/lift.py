"""`lift` as people teach it: sums of features of many blocks, solved in closed form, by numpy.

The record of a class is its number of images, their mean, and the scatter about it as a few
directions and a diagonal. The classifier is solved from the records. So a dropped class is gone
completely, and merged models know what one model taught everything would know. Nothing is held out:
each image is left out in turn to test the others.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from dafuse.backbones.backbone import Backbone, Need
from dafuse.backbones.depths import Depths, place_of
from dafuse.heads.choice import Choice, Evidence
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.closed_form import KINDS
from dafuse.heads.confidence import BEND, Temperature, Threshold, sharpness
from dafuse.heads.factored import head_from
from dafuse.heads.head import Head
from dafuse.heads.many import AT_ONCE, MANY_CLASSES, ManyClasses, many
from dafuse.heads.resting import Precision
from dafuse.heads.sums import ClassSums, classwise, compact, from_compact
from dafuse.methods.lift_parts import HeadName, kinds_of, lift_of
from dafuse.methods.options import Range, require_valid
from dafuse.taught import words
from dafuse.taught.contract import (
    CLASS,
    DERIVED,
    PREDICT,
    SHARED,
    WHICH,
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
    encoder_reads_shared: ClassVar[bool] = False
    remains: ClassVar[str] = words.LIFT.remains

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None:
        self.extractor, self.features = extractor, settings["features"]
        self.settings = settings
        like = np.zeros(0, np.float32)
        self.lift = lift_of(extractor, self.features, 0, seed, like)
        self.solved = ClosedForm(
            self.lift,
            classwise(self.lift.width, settings["rank"], like),
            kinds_of(settings["head"]),
            settings["penalty"],
            PRECISION,
            like,
            tokens_M=self.lift.tokens_M,
            last_token=_last_token(extractor, self.features),
        )
        self.many = self._many()  # of thousands of classes, instead of `solved`
        self._is_many = False
        self._present = 0  # classes, once sums were taken up; there may be room for more
        self._head: Head | None = None  # as it was read, until something changes it

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown("lift", given, [each.name for each in fields(LiftSettings)])
        require_valid(LiftSettings, given)
        return asdict(LiftSettings(**given))

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        return "features"

    @classmethod
    def takes(cls, settings: dict[str, Any]) -> Collection[str]:
        return ()

    def learn(self, lesson: Lesson) -> Tested:
        assert lesson.feats_NF is not None
        self._head = None
        images = sum(lesson.counts_C) + len(lesson.labels_N)
        if self._becomes_many(len(lesson.names), images):
            self.many.learn(self.lift(lesson.feats_NF), lesson.labels_N)
            return Tested("each left out in turn", *self.many.tried)
        self.solved.cut_to(len(lesson.names))
        self._present = 0
        self.solved.learn(lesson.feats_NF, lesson.labels_N)
        return Tested("each left out in turn", *self.solved.tried)

    def collect(self, feats_NF: np.ndarray, labels_N: np.ndarray) -> None:
        self.solved.observe(feats_NF, labels_N)

    def collected(self) -> Arrays:
        return compact(self.solved.sums)

    def take_up(self, collected: Arrays, numbers: Sequence[int], classes: int) -> None:
        self._head = None
        sums = from_compact(collected, self.settings["rank"])
        present = max(self._classes, max(numbers) + 1)
        if self._becomes_many(present, self._images + sums.images):
            missing = sorted(set(range(self.many.classes, present)) - set(numbers))
            sums.make_room(len(numbers) + len(missing))  # their only images come with `learn`
            self.many.take_up(np.array([*numbers, *missing]), sums)
            return
        self._present = present
        self.solved.take_up(sums, numbers, max(present, min(classes, MANY_CLASSES)))

    def drop(self, remaining: Sequence[int]) -> None:
        self._head = None
        if not self._is_many:
            self.solved.drop(remaining)
            return
        self.many.require_totals()
        images = self.many.counts_C[list(remaining)].sum()
        if many(len(remaining), images, self.lift.width, self.solved.kinds):
            self.many.drop(remaining)
        else:
            self._become_few(remaining)

    def merge(self, other: "TaughtLift", numbers: Sequence[int]) -> None:
        self._head = None
        classes, images = max(numbers, default=-1) + 1, self._images + other._images
        if not self._becomes_many(max(classes, self._classes), images):
            self.solved.merge(other.solved, numbers)
            return
        for start in range(0, len(numbers), AT_ONCE):
            part = range(start, min(start + AT_ONCE, len(numbers)))
            self.many.take_up(np.array(numbers)[part], other._records(part))
        mine, theirs = self.many, other.many if other._is_many else other.solved
        mine.temperature = mine.temperature.joined(theirs.temperature)
        mine.threshold = mine.threshold.joined(theirs.threshold)
        mine.evidence = mine.evidence + theirs.evidence
        mine.solve()
        mine.changed = {number: mine.record(number) for number in range(mine.classes)}

    def read_records(self, record_of: Callable[[int], Arrays]) -> None:
        """Read records of many classes by this function, when they are needed."""
        self.many.record_of, self._is_many = record_of, True

    def _many(self) -> ManyClasses:
        settings = self.settings
        columns = _last_token(self.extractor, self.features)
        options = settings["rank"], settings["penalty"], columns, self.lift.weights_F
        return ManyClasses(self.lift.width, *options, self._record_of_few)

    def _record_of_few(self, number: int) -> Arrays:
        return {name: array[number] for name, array in self.solved.resting.items()}

    @property
    def _classes(self) -> int:
        if self._is_many:
            return self.many.classes
        return self._present or self.solved.sums.classes

    @property
    def _images(self) -> float:
        if self._is_many:
            self.many.require_totals()
        return self.many.images if self._is_many else self.solved.sums.images

    def _records(self, numbers: Sequence[int]) -> ClassSums:
        """Return the sums of these classes, as their records have them."""
        if not self._is_many:
            self.many.changed = {number: self._record_of_few(number) for number in numbers}
        return self.many.records(numbers)

    def _becomes_many(self, classes: int, images: float) -> bool:
        """Tell whether these are many classes; if so, go on with what few have learned."""
        if self._is_many or not many(classes, images, self.lift.width, self.solved.kinds):
            return self._is_many
        few, self._is_many = self.solved, True
        if self._present:  # the records are not stored yet
            few.cut_to(self._present)
            few.rest()
            self.many.changed = {n: self._record_of_few(n) for n in range(self._present)}
        self.many.temperature, self.many.threshold = few.temperature, few.threshold
        self.many.evidence, self.many.choice = few.evidence, few.choice
        self.many.go_on_from(few.resting)
        return True

    def _become_few(self, remaining: Sequence[int]) -> None:
        """Go on with few classes, from their records."""
        before, found = self.many, [self.many.record(number) for number in remaining]
        resting = {name: np.stack([one[name] for one in found]) for name in found[0]}
        self.solved.restore(resting, before.choice, before.temperature)
        self.solved.threshold, self.solved.evidence = before.threshold, before.evidence
        self._is_many, self.many = False, self._many()
        self.solved.drop(range(len(remaining)))

    def encoder(self, shared: Arrays) -> Encode:
        return lambda squares_B3SS: self.extractor.encode(squares_B3SS, self.features)

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.extractor.graph(self.features)

    def head(self) -> Head:
        if self._head is not None:
            return self._head
        if self._is_many:
            self._head = self.many.head()  # large, and asked for twice
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
        if self._is_many:
            changed = self.many.changed
            which = sorted(changed)
            found = [changed[number] for number in which]
            names = found[0] if found else {}
            return {
                WHICH: np.array(which, np.int64),
                **{CLASS + name: np.stack([one[name] for one in found]) for name in names},
                SHARED + "evidence": self.many.evidence.array(),
                **named(PREDICT, self.head().arrays()),
                **named(DERIVED, self.many.derived()),
            }
        return {
            **named(CLASS, self.solved.resting),
            SHARED + "evidence": self.solved.evidence.array(),
            **named(PREDICT, self.head().arrays()),
        }

    def numbers(self) -> Numbers:
        solved = self.many if self._is_many else self.solved
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
        self._head = head_from(weights, numbers) if weights else None
        choice = Choice(
            KINDS[int(numbers["kind"])],
            numbers["penalty"],
            int(numbers["left_out"]),
            numbers["accuracy"],
        )
        temperature = Temperature.from_numbers(numbers)
        if self._is_many:
            self.many.restore(weights, under(DERIVED, arrays), choice, temperature)
            self.many.evidence = Evidence.from_array(arrays[SHARED + "evidence"])
            self.many.threshold = Threshold.from_numbers(numbers, self.many.classes)
            return
        self.solved.restore(under(CLASS, arrays), choice, temperature)
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

"""Ridge regression on the records of many classes, solved once for all of them.

`heads.classifier` solves a weight vector for each class again with every lesson, from all records.
With thousands of classes that is most of a lesson. Here a lesson reads the records of its own
classes only: it takes them out of the totals over all records (`heads.totals`), puts the new ones
in, and factorises one matrix. The factor and the class means predict (`heads.factored`). The
classifier is the same function of the records; nothing of it depends on the order of lessons
beyond rounding.

Three things are done in another way than with few classes: the unit of the scores is estimated by
random probes, familiarity looks at the last CLS token alone, and images are left out of the
classifier of the rounded records, fewer of them where there are many classes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from dafuse.heads.arrays import check_finite
from dafuse.heads.choice import MANY, Choice, Evidence, evenly_chosen, tried_at_usual, usual_penalty
from dafuse.heads.closed_form import Kind, Products, rescored
from dafuse.heads.confidence import BEND, Temperature, Threshold, sharpness
from dafuse.heads.factored import (
    FactoredHead,
    OwnClasses,
    TokenFamiliarity,
    awake_means,
    token_familiarity,
)
from dafuse.heads.factors import jitters
from dafuse.heads.resting import LEAST, awake, rounded
from dafuse.heads.scatter import ClasswiseScatter
from dafuse.heads.strips import Solver, Strips
from dafuse.heads.sums import ClassSums, classwise
from dafuse.heads.totals import Totals

MANY_CLASSES = 2000  # from so many on, solving each of them again takes most of a lesson
AT_ONCE = 128  # records that are awake at once
TRIED_SCORES = 500_000  # leave-one-out scores of a lesson: images times classes
LEAST_TRIED = 25  # images left out in turn, where there are so many classes
PROBES = 64
Record = Mapping[str, np.ndarray]  # of one class, as it rests


def many(classes: int, images: float, width: int, kinds: Sequence[Kind]) -> bool:
    """Tell whether so many classes are solved in this way; the answer depends on nothing else.

    There are so many images that only the usual penalty of ridge regression is tried.
    """
    return tuple(kinds) == ("ridge",) and classes >= MANY_CLASSES and images >= MANY * width


class ManyClasses:
    """Totals over records, the factor solved from them, and the class means."""

    def __init__(
        self,
        width: int,
        rank: int,
        penalty: float | None,
        columns: slice,
        scale_F: np.ndarray,
        record_of: Callable[[int], Record],
    ) -> None:
        """Start without classes. Features times ``scale_F`` are what records hold.

        ``columns`` are those of the last CLS token. ``record_of`` reads the record of a class that
        has not changed here.
        """
        self.width, self.rank, self.penalty, self.columns = width, rank, penalty, columns
        self.scale_F, self.record_of = scale_F, record_of
        self.changed: dict[int, Record] = {}  # records that are not stored yet
        self.counts_C = np.zeros(0)
        self.means_CM = np.zeros((0, width), np.int16)
        self.steps = np.zeros((0, 0), np.float32)
        self.totals: Totals | None = None  # None: to be made again from the records
        self.solver = Solver(Strips.zeros(0))
        self.centre_M, self.gain, self.unit = np.zeros(width), 1.0, 1.0
        self.token: TokenFamiliarity | None = None
        self.choice = Choice("ridge", 0.0, 0, 0.0)
        self.temperature, self.threshold, self.evidence = Temperature(), Threshold(), Evidence()
        self.tried = np.zeros(0, np.int64), np.zeros(0, np.int64)

    @property
    def classes(self) -> int:
        return len(self.means_CM)

    @property
    def images(self) -> float:
        return float(self.counts_C.sum())

    def learn(self, hidden_NM: np.ndarray, labels_N: np.ndarray) -> None:
        """Add a lesson's images; solve, and leave some out in turn."""
        numbers = np.unique(labels_N)
        for start in range(0, len(numbers), AT_ONCE):
            part = numbers[start : start + AT_ONCE]
            after = self.records(part[part < self.classes])
            own_N = np.isin(labels_N, part)
            after.add(hidden_NM[own_N], np.searchsorted(part, labels_N[own_N]))
            self._put(part, after)
        self.solve()
        self._leave_out(hidden_NM, labels_N)

    def take_up(self, numbers: np.ndarray, other: ClassSums) -> None:
        """Add the records of another; its class i is ``numbers[i]`` here. `solve` must follow."""
        order = np.argsort(numbers)
        other.take(order.tolist())
        numbers = numbers[order]
        after = self.records(numbers[numbers < self.classes])
        after.merge(other)
        self._put(numbers, after)

    def go_on_from(self, resting: Record) -> None:
        """Start from the records of all classes so far, at rest."""
        self.counts_C = resting["counts"]
        self.means_CM, self.steps = resting["means"], resting["means_step"]

    def derived(self) -> dict[str, np.ndarray]:
        """Return the totals, from which the next lesson goes on, to store."""
        return {**self.require_totals().arrays(), "counts": self.counts_C}

    def restore(
        self,
        predict: Record,
        derived: dict[str, np.ndarray],
        choice: Choice,
        temperature: Temperature,
    ) -> None:
        """Take over what was stored; without totals they are made again when they are needed."""
        self.means_CM, self.steps = predict["weights"], predict["weights_step"]
        if derived:
            self.totals, self.counts_C = Totals.from_arrays(derived), derived["counts"]
            if len(self.totals.sum_M) != self.width or len(self.counts_C) != self.classes:
                raise ValueError("the totals are of other classes or features")
        self.choice, self.temperature = choice, temperature

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only, in this order, and solve."""
        totals = self.require_totals()
        gone = np.setdiff1d(np.arange(self.classes), remaining)
        for start in range(0, len(gone), AT_ONCE):
            totals.add(self.records(gone[start : start + AT_ONCE]), -1.0)
        kept = np.array(remaining, dtype=np.int64)
        stored, before = self.record_of, self.changed
        self.record_of = lambda number: stored(int(kept[number]))
        self.changed = {n: before[old] for n, old in enumerate(remaining) if old in before}
        self.counts_C, self.means_CM = self.counts_C[kept], self.means_CM[kept]
        self.steps = self.steps[kept]
        self.solve()

    def records(self, numbers: Sequence[int] | np.ndarray) -> ClassSums:
        """Return the sums of these classes, from their records."""
        sums = classwise(self.width, self.rank, np.zeros(0))
        found = [self.record(int(number)) for number in numbers]
        if found:
            awake(sums, {name: np.stack([one[name] for one in found]) for name in found[0]})
        return sums

    def record(self, number: int) -> Record:
        return self.changed[number] if number in self.changed else self.record_of(number)

    def require_totals(self) -> Totals:
        """Return the totals; make them again from all records where none are kept."""
        if self.totals is None:
            totals, counts = Totals.empty(self.width), []
            for start in range(0, self.classes, AT_ONCE):
                sums = self.records(range(start, min(start + AT_ONCE, self.classes)))
                totals.add(sums)
                counts.append(sums.counts_C)
            self.totals, self.counts_C = totals, np.concatenate([np.zeros(0), *counts])
        return self.totals

    def _put(self, numbers: np.ndarray, after: ClassSums) -> None:
        """Replace the records of these classes, in order, or append them."""
        totals = self.require_totals()
        totals.add(self.records(numbers[numbers < self.classes]), -1.0)
        stored, resting = rounded(after, LEAST)
        totals.add(stored)
        known = numbers[numbers < self.classes]
        for place, number in enumerate(numbers.tolist()):
            self.changed[number] = {name: part[place] for name, part in resting.items()}
        count = len(known)
        fresh = {name: resting[name] for name in ("counts", "means", "means_step")}
        if count:
            self.means_CM, self.steps = self.means_CM.copy(), self.steps.copy()
            self.counts_C = self.counts_C.copy()
            self.counts_C[known] = fresh["counts"][:count]
            self.means_CM[known] = fresh["means"][:count]
            self.steps[known] = fresh["means_step"][:count]
        if count < len(numbers):
            steps = self.steps.reshape(-1, fresh["means_step"].shape[1])
            self.counts_C = np.concatenate([self.counts_C, fresh["counts"][count:]])
            self.means_CM = np.concatenate([self.means_CM, fresh["means"][count:]])
            self.steps = np.concatenate([steps, fresh["means_step"][count:]])

    def solve(self) -> None:
        """Factorise A = S + b C C^T + p I for the present records."""
        totals, classes, images = self.require_totals(), self.classes, self.images
        typical = ClassSums(self.counts_C, self.means_CM, _no_scatter(self.width)).typical
        penalty = self.penalty or usual_penalty("ridge", typical, self.width)
        self.solver = self._solver(totals, penalty)
        self.centre_M = totals.sum_M / classes
        self.unit = self._unit(totals)
        self.gain = images / classes / self.unit
        self.token = token_familiarity(totals, classes, images, self.columns)
        self.choice = Choice("ridge", penalty, 0, 0.0)

    def _solver(self, totals: Totals, penalty: float) -> Solver:
        """Factorise the matrix with its penalty, a share of the mean diagonal."""
        for share in jitters():
            matrix = totals.matrix(self.classes, self.images)
            matrix.add_to_diagonal((penalty + share) * (matrix.trace / self.width or 1.0))
            with suppress(np.linalg.LinAlgError):
                return Solver.of(matrix)
        raise ArithmeticError("the scatter is not positive semi-definite")

    def _unit(self, totals: Totals) -> float:
        """Return how far a class mean's own score is above those of others, on average.

        That is the trace of A^-1 b C C^T over K - 1, estimated by random vectors of signs, which
        are always the same.
        """
        signs = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (self.width, PROBES))
        probes_MP = self.solver.backward(2.0 * signs - 1)
        sums_P = totals.sum_M @ probes_MP
        outer = float((probes_MP * totals.outer.product(probes_MP)).sum())
        trace = (outer - float((sums_P**2).sum()) / self.classes) / PROBES
        unit = self.images / self.classes * trace / max(1, self.classes - 1)
        return unit if unit > 0 else 1.0

    def _leave_out(self, hidden_NM: np.ndarray, labels_N: np.ndarray) -> None:
        """Leave some of these images out in turn, for calibration and the lesson's accuracy."""
        most = max(LEAST_TRIED, TRIED_SCORES // self.classes)
        rows_N = evenly_chosen(self.counts_C[labels_N] > 1, most)
        if not len(rows_N):
            self.tried = np.zeros(0, np.int64), np.zeros(0, np.int64)
            return
        hidden_NM, labels_N = hidden_NM[rows_N], labels_N[rows_N]
        scores_NC = self.left_out(hidden_NM, labels_N) / self.unit
        check_finite(scores_NC, "the scores of the classifier")
        answers_N = scores_NC.argmax(1)
        right = int((answers_N == labels_N).sum())
        self.choice.left_out, self.choice.accuracy = len(labels_N), right / len(labels_N)
        self.temperature = self.temperature.after(scores_NC, labels_N)
        self.evidence = self.evidence + tried_at_usual(len(labels_N))
        self.tried = labels_N, answers_N
        assert self.token is not None
        near_CD = self.token.near(awake_means(self.means_CM, self.steps, self.columns))
        own = OwnClasses(labels_N, self.counts_C[labels_N])
        familiar_N = self.token(hidden_NM.astype(np.float64), near_CD, own)
        self.threshold = self.threshold.after(familiar_N, self.classes)

    def left_out(self, hidden_NM: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
        """Return the leave-one-out scores [N, C] of images whose classes have others."""
        own, rows_N = np.unique(labels_N, return_inverse=True)
        means_OM = self._means(own).astype(np.float64)
        apart_NM, centred_OM = hidden_NM - means_OM[rows_N], means_OM - self.centre_M
        both_MK = np.concatenate([apart_NM, centred_OM]).T
        solved_MK = self.solver(both_MK)
        to_means_KC = self._to_means(solved_MK.T)
        count = len(labels_N)
        own_N = (apart_NM * solved_MK.T[:count]).sum(1)
        nothing = np.zeros(0)  # what LDA alone needs
        products = Products(own_N, to_means_KC[:count], to_means_KC[count:], nothing)
        between = self.images / self.classes
        scores_NC: np.ndarray = rescored(
            products, labels_N, rows_N, self.counts_C[labels_N], between
        ).scores_NC
        return between * scores_NC

    def _to_means(self, solved_KM: np.ndarray) -> np.ndarray:
        """Return the products [K, C] with the centred class means, some classes at a time."""
        plain_KM = solved_KM.astype(np.float32)
        found_KC = np.empty((len(solved_KM), self.classes))
        for start in range(0, self.classes, 1024):
            part = slice(start, start + 1024)
            found_KC[:, part] = plain_KM @ self._means(part).T
        return found_KC - (solved_KM @ self.centre_M)[:, None]

    def _means(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return class means in float32."""
        return awake_means(self.means_CM[rows], self.steps[rows])

    def head(self) -> FactoredHead:
        """Return what predicts, from the network's features."""
        return FactoredHead(
            self.means_CM,
            np.zeros(self.classes, np.float32),
            bend=BEND,
            sharpness=sharpness(self.classes, self.temperature.value),
            threshold=self.threshold.value,
            weights_step=self.steps,
            factor=self.solver.factor.copy(np.float32),
            centre_F=self.centre_M.astype(np.float32),
            scale_F=self.scale_F,
            gain=self.gain,
            token=self.token,
        )


def _no_scatter(width: int) -> ClasswiseScatter:
    return ClasswiseScatter(width, 1, np.zeros(0))

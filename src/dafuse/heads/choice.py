"""Which closed-form head, at which penalty: chosen by leaving images out, none held back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dafuse.heads.arrays import Array, exact, to_numpy
from dafuse.heads.closed_form import KINDS, Kind, Linear, System
from dafuse.heads.sums import ClassSums

FACTORS = tuple(10 ** (power / 2) for power in range(-3, 4))  # of the usual penalty
LEAST_PENALTY = 1e-7  # a penalty, less than which makes no difference
MANY = 2  # images for each number of a feature, from which on only the usual penalty is tried
NEAREST = 1e6  # a penalty at which only class means count: with it, LDA is the nearest mean
ENOUGH = 3  # images of a class, from which on leaving one out tells which penalty suits all
FEW, FADING = 1 / 3, 4  # of the emphasis on CLS tokens: images for each number of a feature
TRIED_ON = 1000  # images that a penalty is tried on; fewer say too little to pay for a system each


def usual_penalty(kind: Kind, images: float, width: int) -> float:
    """A penalty that suits so many images: large for few of them, almost none for many.

    Fitted to accuracy on held-out training images of CIFAR-100 (and, for ridge, Tiny-ImageNet): 5
    to 200 classes of 2 to 400 images, of which the best penalty is known (docs/lift.md). What
    decides is how many images there are for each number of a feature. For ridge it is at most the
    mean squared distance of an image from the centre, which suits any few images, one a class too.
    """
    each = max(1.0, images) / width
    if kind == "ridge":
        return max(LEAST_PENALTY, min(1 / each, 0.2 * each**-1.5 / (1 + each**2) ** 3))
    return 300 * (0.02 / each) ** 1.7


def emphasis(tokens_M: Array, images: float, width: int) -> Array | None:
    """The emphasis [M] on the columns of CLS tokens (1 in ``tokens_M``, others 0).

    Almost 2 for a handful of images, when a regression must shrink and what the network says best
    should decide; it fades as they become more. None where they are `FEW` no longer.
    """
    each = images / width
    return None if each >= FEW else 1 + tokens_M / (1 + FADING * each) ** 2


def _nothing_tried() -> np.ndarray:
    return np.zeros((len(KINDS), len(FACTORS) + 1))


@dataclass(frozen=True)
class Evidence:
    """What images left out say of each penalty tried, over all lessons.

    A lesson of few images says little, and its own best penalty is mostly luck. A row is a kind, a
    column one of `FACTORS`, the last one `NEAREST`. Two models that are merged add theirs up.
    """

    gains_KF: np.ndarray = field(default_factory=_nothing_tried)  # right beyond the usual penalty
    tried_KF: np.ndarray = field(default_factory=_nothing_tried)  # images

    def __add__(self, other: "Evidence") -> "Evidence":
        return Evidence(self.gains_KF + other.gains_KF, self.tried_KF + other.tried_KF)

    def array(self) -> np.ndarray:
        """[2, kinds, factors], to be kept."""
        return np.stack([self.gains_KF, self.tried_KF])


@dataclass
class Choice:
    """A head and its penalty, and what leaving images out says of it."""

    kind: Kind
    penalty: float
    left_out: int  # images it was tried on; 0 where none can be left out
    accuracy: float  # share of them that is right; 0 where there are none


class Found(NamedTuple):
    """What was chosen, its classifier, and the scores of the images that were left out in turn."""

    choice: Choice
    head: Linear
    scores_NC: np.ndarray
    fitted_NC: np.ndarray  # the scores that they have when they are not left out
    labels_N: np.ndarray
    rows_N: np.ndarray  # which of the images given these are
    evidence: Evidence  # that of before, and theirs


def choose(
    sums: ClassSums,
    hidden_NM: Array,
    labels_N: Array,
    kinds: Sequence[Kind] = ("ridge",),
    penalty: float | None = None,
    absolute: bool = False,
    tokens_M: Array | None = None,
    before: Evidence | None = None,
) -> Found:
    """The head to use, by exact leave-one-out over these images of the sums.

    A given penalty is a share of the mean diagonal, or `absolute`: what is added to the diagonal.
    Unless it is given, penalties around the usual one of each kind are tried, and where there are
    several kinds the nearest class mean, which is LDA at `NEAREST`. What images of lessons before
    said of them counts as much. Among those whose accuracy is within one standard error of the
    best, the choice is the one nearest to the usual, the first kind before others. Where their
    classes have less than `ENOUGH` images, only the usual penalty of each kind is tried: one of two
    images left out halves what is known of its class. Without images, the first kind at its usual
    penalty is taken. Where no class has two of them, there is no scatter, and LDA takes `NEAREST`.
    Columns of CLS tokens, where it is told which these are, count more with few images
    (`emphasis`).
    """
    before = before or Evidence()
    systems = {kind: system_of(sums, kind, tokens_M) for kind in kinds}
    usual = {kind: penalty or usual_penalty(kind, sums.typical, sums.width) for kind in kinds}
    if not penalty and "lda" in kinds and float(sums.counts_C.max()) < 2:
        usual["lda"] = NEAREST
    if penalty and absolute:
        usual = {kind: penalty / systems[kind].scale for kind in kinds}
    rows_N = spread(countable(sums, labels_N))
    hidden_NM, labels_N = hidden_NM[rows_N], labels_N[rows_N]
    if not len(labels_N) or sums.classes < 2:
        first = kinds[0]
        none_NC, no_labels = np.zeros((0, sums.classes)), np.zeros(0, dtype=np.int64)
        choice = Choice(first, usual[first], left_out=0, accuracy=0.0)
        head = systems[first].head(usual[first])
        return Found(choice, head, none_NC, none_NC, no_labels, rows_N[:0], before)
    labels = to_numpy(labels_N)
    fixed = penalty or float(sums.counts_C[labels_N].mean()) < ENOUGH
    tried: list[_Tried] = []
    for order, kind in enumerate(kinds):
        tries = (1.0,) if fixed else _factors(systems[kind], sums.width, len(labels))
        # the usual one last, whose factor then serves the head as well
        factors = sorted(tries, key=lambda f: -abs(math.log(f)))
        penalties = [usual[kind] * factor for factor in factors]
        if kind == "lda" and len(kinds) > 1 and not penalty:
            penalties, factors = [*penalties, NEAREST], [*factors, math.inf]
        found = systems[kind].left_out(hidden_NM, labels_N, penalties)
        for each, factor, scores_NC in zip(penalties, factors, found, strict=True):
            scores = to_numpy(scores_NC)
            right = int((scores.argmax(1) == labels).sum())
            tried.append(_Tried(factor, order, kind, each, right, scores))
    evidence = before + _said(tried, len(labels))
    taken = _best(tried, len(labels), evidence)
    choice = Choice(taken.kind, taken.penalty, len(labels), taken.right / len(labels))
    head = systems[taken.kind].head(taken.penalty)
    fitted_NC = to_numpy(head.scores(exact(hidden_NM)))
    return Found(choice, head, taken.scores_NC, fitted_NC, labels, rows_N, evidence)


def system_of(sums: ClassSums, kind: Kind, tokens_M: Array | None) -> System:
    """What is solved for a penalty, with columns of CLS tokens emphasised."""
    emphasis_M = None if tokens_M is None else emphasis(tokens_M, sums.images, sums.width)
    return System(sums, kind, emphasis_M)


def _factors(system: System, width: int, left_out: int) -> tuple[float, ...]:
    """What the usual penalty is multiplied by: as many numbers as are worth their time."""
    if system.penalties_are_cheap:
        return FACTORS
    many = system.kind == "ridge" and system.images >= MANY * width
    return (1.0,) if many or left_out < TRIED_ON else FACTORS[1::2]


class _Tried(NamedTuple):
    factor: float  # of the usual penalty; infinite for the nearest mean
    order: int  # of its kind among the kinds
    kind: Kind
    penalty: float
    right: int  # of the images left out
    scores_NC: np.ndarray  # theirs

    @property
    def cell(self) -> tuple[int, int]:
        """Where its evidence stands."""
        column = len(FACTORS) if self.factor == math.inf else FACTORS.index(self.factor)
        return KINDS.index(self.kind), column


def _said(tried: Sequence[_Tried], images: int) -> Evidence:
    """What this lesson's images say of the penalties tried."""
    (usual,) = [one.right for one in tried if one.factor == 1 and one.order == 0]
    found = Evidence()
    for one in tried:
        found.gains_KF[one.cell] = one.right - usual
        found.tried_KF[one.cell] = images
    return found


def _best(tried: Sequence[_Tried], images: int, evidence: Evidence) -> _Tried:
    """Among those within a standard error of the best, the one nearest to the usual."""

    def gain(one: _Tried) -> float:
        return float(evidence.gains_KF[one.cell] / evidence.tried_KF[one.cell])

    best = max(tried, key=gain)
    share = best.right / images
    error = (share * (1 - share) / evidence.tried_KF[best.cell]) ** 0.5
    good = [one for one in tried if gain(one) >= gain(best) - error]
    return min(good, key=lambda one: (abs(math.log(one.factor)), one.order))


def countable(sums: ClassSums, labels_N: Array) -> np.ndarray:
    """Which of these images can be left out: those whose class has another."""
    return to_numpy(sums.counts_C[labels_N]) > 1


def spread(which_N: np.ndarray) -> np.ndarray:
    """The rows of these images; where they are many, of evenly spread ones of them."""
    rows = np.flatnonzero(which_N)
    if len(rows) > TRIED_ON:
        rows = rows[np.linspace(0, len(rows) - 1, TRIED_ON).round().astype(np.int64)]
    return rows

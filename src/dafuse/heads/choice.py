"""The choice of a closed-form head and its penalty, by leave-one-out over all its images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dafuse.heads.arrays import Array, exact, to_numpy
from dafuse.heads.closed_form import KINDS, Kind, Linear, System
from dafuse.heads.sums import ClassSums

FACTORS = tuple(10 ** (power / 2) for power in range(-3, 4))  # multiples of the usual penalty
LEAST_PENALTY = 1e-7  # smaller penalties change nothing
MANY = 2  # images per feature column, from which on only the usual penalty is tried
NEAREST = 1e6  # a penalty at which only class means count: with it, LDA is the nearest class mean
ENOUGH = 3  # images per class, from which on leave-one-out can tell penalties apart
FEW, FADING = 1 / 3, 4  # of the emphasis on CLS tokens, in images per feature column
TRIED_ON = 1000  # images to try penalties on; fewer do not pay for a system each


def usual_penalty(kind: Kind, images: float, width: int) -> float:
    """Return a penalty that suits so many images: large for few, almost none for many.

    Fitted to accuracy on held-out training images of CIFAR-100 (and, for ridge, Tiny-ImageNet),
    with 5 to 200 classes of 2 to 400 images, where the best penalty is known (docs/lift.md). The
    penalty depends on the number of images per feature column. For ridge it is at most the mean
    squared distance of an image from the centre, which suits even one image per class.
    """
    each = max(1.0, images) / width
    if kind == "ridge":
        return max(LEAST_PENALTY, min(1 / each, 0.2 * each**-1.5 / (1 + each**2) ** 3))
    return 300 * (0.02 / each) ** 1.7


def emphasis(tokens_M: Array, images: float, width: int) -> Array | None:
    """Return the emphasis [M] on the columns of CLS tokens (1 in ``tokens_M``, others 0).

    It is almost 2 for a handful of images: then a regression must shrink, and the most telling
    columns should decide. It fades with more images, and is None from `FEW` per column on.
    """
    each = images / width
    return None if each >= FEW else 1 + tokens_M / (1 + FADING * each) ** 2


def _nothing_tried() -> np.ndarray:
    return np.zeros((len(KINDS), len(FACTORS) + 1))


@dataclass(frozen=True)
class Evidence:
    """Leave-one-out results of each penalty tried, over all lessons.

    A lesson of few images says little, and its own best penalty is mostly luck. Rows are kinds,
    columns are `FACTORS` and then `NEAREST`. Merging two models adds their evidence.
    """

    gains_KF: np.ndarray = field(default_factory=_nothing_tried)  # right answers above the usual's
    tried_KF: np.ndarray = field(default_factory=_nothing_tried)  # images

    def __add__(self, other: "Evidence") -> "Evidence":
        return Evidence(self.gains_KF + other.gains_KF, self.tried_KF + other.tried_KF)

    def array(self) -> np.ndarray:
        """Return the evidence [2, kinds, factors], to store."""
        return np.stack([self.gains_KF, self.tried_KF])

    @classmethod
    def from_array(cls, kept: np.ndarray) -> "Evidence":
        """Undo `array`; raise `ValueError` for values that it never gives."""
        if kept.shape != (2, *_nothing_tried().shape) or not (kept[1] >= 0).all():
            raise ValueError("the evidence of penalties has another shape or negative counts")
        return cls(*kept)


@dataclass
class Choice:
    """A head, its penalty and its leave-one-out result."""

    kind: Kind
    penalty: float
    left_out: int  # images that were left out in turn; 0 if none could be
    accuracy: float  # share of them answered right; 0 if there are none


class Found(NamedTuple):
    """The choice, its classifier, and the leave-one-out scores behind it."""

    choice: Choice
    head: Linear
    scores_NC: np.ndarray
    fitted_NC: np.ndarray  # the scores of the same images when they are not left out
    labels_N: np.ndarray
    rows_N: np.ndarray  # the indices of these images among those given
    evidence: Evidence  # of all lessons, with this one


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
    """Choose a head and a penalty by exact leave-one-out over these images of the sums.

    A given penalty is used as it is: a share of the mean diagonal or, if `absolute`, what is added
    to the diagonal. Without one, penalties around the usual one of each kind are tried; if there
    are several kinds, so is the nearest class mean, which is LDA at `NEAREST`. The evidence of
    earlier lessons counts as much as these images.

    Among the candidates whose accuracy is within one standard error of the best, the one nearest to
    the usual penalty wins, and earlier kinds win over later ones. Special cases:

    - Classes of less than `ENOUGH` images on average: only the usual penalty of each kind is tried,
      because leaving out one of two images halves what is known of its class.
    - No images: the first kind at its usual penalty.
    - No class with two images: there is no scatter, and LDA takes `NEAREST`.

    Columns of CLS tokens, if ``tokens_M`` names them, count more with few images (`emphasis`).
    """
    before = before or Evidence()
    systems = {kind: system_of(sums, kind, tokens_M) for kind in kinds}
    usual = {kind: penalty or usual_penalty(kind, sums.typical, sums.width) for kind in kinds}
    if not penalty and "lda" in kinds and float(sums.counts_C.max()) < 2:
        usual["lda"] = NEAREST
    if penalty and absolute:
        usual = {kind: penalty / systems[kind].scale for kind in kinds}
    rows_N = evenly_chosen(countable(sums, labels_N))
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
        # the usual penalty last, so that its factorisation also serves the head
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
    """Return the system to solve, with an emphasis on the columns of CLS tokens."""
    emphasis_M = None if tokens_M is None else emphasis(tokens_M, sums.images, sums.width)
    return System(sums, kind, emphasis_M)


def _factors(system: System, width: int, left_out: int) -> tuple[float, ...]:
    """Return the multiples of the usual penalty to try: as many as are worth their time."""
    if system.penalties_are_cheap:
        return FACTORS
    many = system.kind == "ridge" and system.images >= MANY * width
    return (1.0,) if many or left_out < TRIED_ON else FACTORS[1::2]


class _Tried(NamedTuple):
    factor: float  # multiple of the usual penalty; infinite for the nearest class mean
    order: int  # index of the kind among the kinds tried
    kind: Kind
    penalty: float
    right: int  # right leave-one-out answers
    scores_NC: np.ndarray  # leave-one-out scores

    @property
    def cell(self) -> tuple[int, int]:
        """The indices of this candidate in the evidence."""
        column = len(FACTORS) if self.factor == math.inf else FACTORS.index(self.factor)
        return KINDS.index(self.kind), column


def _said(tried: Sequence[_Tried], images: int) -> Evidence:
    """Return the evidence of this lesson's images for the penalties tried."""
    (usual,) = [one.right for one in tried if one.factor == 1 and one.order == 0]
    found = Evidence()
    for one in tried:
        found.gains_KF[one.cell] = one.right - usual
        found.tried_KF[one.cell] = images
    return found


def tried_at_usual(images: int) -> Evidence:
    """Return the evidence of so many images where no penalty but the usual of ridge was tried."""
    found = Evidence()
    found.tried_KF[KINDS.index("ridge"), FACTORS.index(1.0)] = images
    return found


def _best(tried: Sequence[_Tried], images: int, evidence: Evidence) -> _Tried:
    """Return the candidate nearest to the usual penalty among those within a standard error."""

    def gain(one: _Tried) -> float:
        return float(evidence.gains_KF[one.cell] / evidence.tried_KF[one.cell])

    best = max(tried, key=gain)
    share = best.right / images
    error = (share * (1 - share) / evidence.tried_KF[best.cell]) ** 0.5
    good = [one for one in tried if gain(one) >= gain(best) - error]
    return min(good, key=lambda one: (abs(math.log(one.factor)), one.order))


def countable(sums: ClassSums, labels_N: Array) -> np.ndarray:
    """Tell which images can be left out: those whose class has another image."""
    return to_numpy(sums.counts_C[labels_N]) > 1


def evenly_chosen(which_N: np.ndarray, most: int = TRIED_ON) -> np.ndarray:
    """Return the indices of these images, or evenly spaced ones if there are many."""
    rows, most = np.flatnonzero(which_N), min(most, TRIED_ON)
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
    return rows

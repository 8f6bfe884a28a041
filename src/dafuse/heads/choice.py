"""Which closed-form head, at which penalty: chosen by leaving images out, none held back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dafuse.heads.arrays import Array, to_numpy
from dafuse.heads.closed_form import Kind, Linear, System
from dafuse.heads.sums import ClassSums

FACTORS = tuple(10 ** (power / 2) for power in range(-3, 4))  # of the usual penalty
NEAREST = 1e6  # a penalty at which only class means count: with it, LDA is the nearest mean
TRIED_ON = 1000  # images that a penalty is tried on


def usual_penalty(kind: Kind, images: float, width: int) -> float:
    """A penalty that suits so many images: large for few of them, small for many.

    Fitted to the best penalties of 5 to 100 classes of 1 to 400 images on held-out training images
    of CIFAR-100 (docs/lift.md). What decides is how many images there are for each number of a
    feature.
    """
    few = 0.02 * width / max(1.0, images)
    return 100 * few**2.4 if kind == "ridge" else 300 * few**1.7


@dataclass
class Choice:
    """A head and its penalty, and what leaving images out says of it."""

    kind: Kind
    penalty: float
    temperature: float
    left_out: int  # images it was tried on; 0: the penalty is the usual one
    accuracy: float  # share of them that is right; 0 where there are none


def choose(
    sums: ClassSums,
    hidden_NM: Array,
    labels_N: Array,
    kinds: Sequence[Kind] = ("ridge",),
    penalty: float | None = None,
    absolute: bool = False,
) -> tuple[Choice, Linear]:
    """The head to use, by exact leave-one-out over these images of the sums.

    A given penalty is a share of the mean diagonal, or `absolute`: what is added to the diagonal.
    Unless it is given, penalties around the usual one of each kind are tried, and where there are
    several kinds the nearest class mean, which is LDA at `NEAREST`. Of those whose accuracy is
    within one standard error of the best, the choice is the one nearest to the usual, the first
    kind before others: few images say little. Without images, the usual penalty is taken; where no
    class has two of them, so that nothing can be left out, `NEAREST`.
    """
    systems = {kind: System(sums, kind) for kind in kinds}
    single = float(sums.counts_C.max()) < 2
    given = penalty or (NEAREST if single else None)
    usual = {kind: given or usual_penalty(kind, sums.images, sums.width) for kind in kinds}
    if penalty and absolute:
        usual = {kind: penalty / systems[kind].scale for kind in kinds}
    hidden_NM, labels_N = _some(hidden_NM, labels_N, countable(sums, labels_N))
    if not len(labels_N) or sums.classes < 2:
        kind = kinds[0]
        head = systems[kind].head(usual[kind])
        return Choice(kind, usual[kind], _plain_temperature(sums, head), 0, 0.0), head
    labels = to_numpy(labels_N)
    tried: list[_Tried] = []
    for order, kind in enumerate(kinds):
        tries = FACTORS if systems[kind].every_penalty_at_once else FACTORS[1::2]
        # the usual one last, whose factor then serves the head as well
        factors = sorted(tries if penalty is None else (1.0,), key=lambda f: -abs(math.log(f)))
        penalties = [usual[kind] * factor for factor in factors]
        far = [abs(math.log(factor)) for factor in factors]
        if kind == "lda" and len(kinds) > 1:
            penalties, far = [*penalties, NEAREST], [*far, math.inf]
        found = systems[kind].left_out(hidden_NM, labels_N, penalties)
        for each, distance, scores_NC in zip(penalties, far, found, strict=True):
            scores = to_numpy(scores_NC)
            accuracy = float((scores.argmax(1) == labels).mean())
            tried.append(_Tried(distance, order, kind, each, accuracy, scores))
    best = max(each.accuracy for each in tried)
    error = (best * (1 - best) / len(labels)) ** 0.5
    good = [each for each in tried if each.accuracy >= best - error]
    taken = min(good, key=lambda each: (each.distance, each.order))
    temperature = best_temperature(taken.scores_NC, labels)
    choice = Choice(taken.kind, taken.penalty, temperature, len(labels), taken.accuracy)
    return choice, systems[taken.kind].head(taken.penalty)


class _Tried(NamedTuple):
    distance: float  # from the usual penalty
    order: int  # of its kind among the kinds
    kind: Kind
    penalty: float
    accuracy: float
    scores_NC: np.ndarray  # of images left out


def best_temperature(scores_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """T of the least mean cross-entropy of softmax(scores / T).

    Where all of N images are right, as if one of N + 2 were not, so that it stays finite. The loss
    is convex in 1 / T; bisection finds where its derivative is zero.
    """
    spread = float(scores_NC.std()) or 1.0
    scores = (scores_NC - scores_NC.max(1, keepdims=True)) / spread
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


def countable(sums: ClassSums, labels_N: Array) -> np.ndarray:
    """Which of these images can be left out: those whose class has another."""
    return to_numpy(sums.counts_C[labels_N]) > 1


def _some(hidden_NM: Array, labels_N: Array, which_N: np.ndarray) -> tuple[Array, Array]:
    """These images; where they are many, evenly spread ones of them."""
    rows = np.flatnonzero(which_N)
    if len(rows) > TRIED_ON:
        rows = rows[np.linspace(0, len(rows) - 1, TRIED_ON).round().astype(np.int64)]
    return hidden_NM[rows], labels_N[rows]


def _plain_temperature(sums: ClassSums, head: Linear) -> float:
    """Where nothing can be left out: a class mean's own score is four above the others' mean."""
    if sums.classes < 2:
        return 1.0
    scores_CC = to_numpy(head.scores(sums.means_CM))
    own = float(scores_CC.diagonal().mean())
    others = (float(scores_CC.sum()) - own * sums.classes) / (sums.classes * (sums.classes - 1))
    return max(own - others, 1e-12) / 4

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


@dataclass
class Choice:
    """A head and its penalty, and what leaving images out says of it."""

    kind: Kind
    penalty: float
    left_out: int  # images it was tried on; 0 where none can be left out
    accuracy: float  # share of them that is right; 0 where there are none


class Found(NamedTuple):
    """What was chosen, its classifier, and the scores of the images that were left out."""

    choice: Choice
    head: Linear
    scores_NC: np.ndarray
    labels_N: np.ndarray


def choose(
    sums: ClassSums,
    hidden_NM: Array,
    labels_N: Array,
    kinds: Sequence[Kind] = ("ridge",),
    penalty: float | None = None,
    absolute: bool = False,
    tokens_M: Array | None = None,
) -> Found:
    """The head to use, by exact leave-one-out over these images of the sums.

    A given penalty is a share of the mean diagonal, or `absolute`: what is added to the diagonal.
    Unless it is given, penalties around the usual one of each kind are tried, and where there are
    several kinds the nearest class mean, which is LDA at `NEAREST`. Of those whose accuracy is
    within one standard error of the best, the choice is the one nearest to the usual, the first
    kind before others: few images say little. Where their classes have less than `ENOUGH` images,
    only the usual penalty of each kind is tried: one of two images left out halves what is known
    of its class. Without images, the first kind at its usual penalty is taken. Where no class has
    two of them, there is no scatter, and LDA takes `NEAREST`. Columns of CLS tokens, where it is
    told which these are, count more with few images (`emphasis`).
    """
    emphasis_M = None if tokens_M is None else emphasis(tokens_M, sums.images, sums.width)
    systems = {kind: System(sums, kind, emphasis_M) for kind in kinds}
    usual = {kind: penalty or usual_penalty(kind, sums.typical, sums.width) for kind in kinds}
    if not penalty and "lda" in kinds and float(sums.counts_C.max()) < 2:
        usual["lda"] = NEAREST
    if penalty and absolute:
        usual = {kind: penalty / systems[kind].scale for kind in kinds}
    hidden_NM, labels_N = _some(hidden_NM, labels_N, countable(sums, labels_N))
    if not len(labels_N) or sums.classes < 2:
        first = kinds[0]
        nothing = np.zeros((0, sums.classes)), np.zeros(0, dtype=np.int64)
        choice = Choice(first, usual[first], left_out=0, accuracy=0.0)
        return Found(choice, systems[first].head(usual[first]), *nothing)
    labels = to_numpy(labels_N)
    fixed = penalty or float(sums.counts_C[labels_N].mean()) < ENOUGH
    tried: list[_Tried] = []
    for order, kind in enumerate(kinds):
        tries = (1.0,) if fixed else _factors(systems[kind], sums.width, len(labels))
        # the usual one last, whose factor then serves the head as well
        factors = sorted(tries, key=lambda f: -abs(math.log(f)))
        penalties = [usual[kind] * factor for factor in factors]
        far = [abs(math.log(factor)) for factor in factors]
        if kind == "lda" and len(kinds) > 1 and not penalty:
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
    choice = Choice(taken.kind, taken.penalty, len(labels), taken.accuracy)
    return Found(choice, systems[taken.kind].head(taken.penalty), taken.scores_NC, labels)


def _factors(system: System, width: int, left_out: int) -> tuple[float, ...]:
    """What the usual penalty is multiplied by: as many numbers as are worth their time."""
    if system.every_penalty_at_once:
        return FACTORS
    many = system.kind == "ridge" and system.images >= MANY * width
    return (1.0,) if many or left_out < TRIED_ON else FACTORS[1::2]


class _Tried(NamedTuple):
    distance: float  # from the usual penalty
    order: int  # of its kind among the kinds
    kind: Kind
    penalty: float
    accuracy: float
    scores_NC: np.ndarray  # of images left out


def countable(sums: ClassSums, labels_N: Array) -> np.ndarray:
    """Which of these images can be left out: those whose class has another."""
    return to_numpy(sums.counts_C[labels_N]) > 1


def _some(hidden_NM: Array, labels_N: Array, which_N: np.ndarray) -> tuple[Array, Array]:
    """These images; where they are many, evenly spread ones of them."""
    rows = np.flatnonzero(which_N)
    if len(rows) > TRIED_ON:
        rows = rows[np.linspace(0, len(rows) - 1, TRIED_ON).round().astype(np.int64)]
    return hidden_NM[rows], labels_N[rows]

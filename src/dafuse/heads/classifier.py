"""A classifier in closed form: sums over features, their stored form, and the chosen penalty.

It takes features, by lessons (`learn`) or batch by batch (`observe`), and gives scores. The sums
are over hidden features: a fixed map lifts the network's features to them. Between lessons the sums
rest in a chosen precision. The classifier is solved from the rounded sums, so a loaded classifier
goes on exactly as one that never stopped. Asking for scores changes no sums.

Everything works on numpy arrays and on torch tensors (`heads.arrays`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from dafuse.heads.arrays import (
    Array,
    beside,
    check_finite,
    exact,
    from_numpy,
    library,
    to_numpy,
    under,
)
from dafuse.heads.choice import NEAREST, Choice, Evidence, Found, choose, system_of, usual_penalty
from dafuse.heads.closed_form import KINDS, Kind, Linear
from dafuse.heads.confidence import Temperature, Threshold, calibrated, unit_of
from dafuse.heads.familiarity import Familiarity, familiarity_of, left_out
from dafuse.heads.lifting import Lift
from dafuse.heads.resting import LEAST, Precision, at_rest, awake, cast, in_steps, rounded
from dafuse.heads.sums import ClassSums, pooled

SUMS, WEIGHTS = "statistics/sums.", "classifier/weights."  # prefixes of names in a state


class ClosedForm:
    """Sums over hidden features, and the classifier solved from them."""

    def __init__(
        self,
        lift: Callable[[Array], Array],
        sums: ClassSums,
        kinds: Sequence[Kind],
        penalty: float | None,
        precision: Precision,
        like: Array,
        absolute: bool = False,
        tokens_M: Array | None = None,
        last_token: slice | None = None,
    ) -> None:
        """Start without images. If no penalty is given, one is chosen (`heads.choice`).

        Columns that are CLS tokens (1 in ``tokens_M``) count more with few images. If
        ``last_token`` says which columns are the last CLS token, the classifier also measures how
        familiar images are. Its weights are in the library and on the device of `like`.
        """
        self.lift, self.sums, self.kinds, self.precision = lift, sums, tuple(kinds), precision
        self.penalty, self.absolute, self.tokens_M = penalty, absolute, tokens_M
        self.choice, self.evidence = Choice(KINDS[0], 0.0, 0, 0.0), Evidence()
        self.temperature, self.threshold = Temperature(), Threshold()
        self.last_token = last_token
        self.familiarity: Familiarity | None = None
        # labels and leave-one-out answers of the last lesson's images
        self.tried = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.tried_scores_NC = np.zeros((0, 0))  # leave-one-out scores of the same images
        self.weights_CM = from_numpy(np.zeros((0, sums.width), np.float32), like)
        self.bias_C = self.weights_CM[:, 0]
        self.resting_weights = self._rested(self.weights_CM)  # stored between lessons
        self.resting = at_rest(sums, precision)  # stored between lessons
        self._rounded = sums  # the sums as they are stored; the classifier is solved from these
        self._settled = True  # whether the classifier is up to date with the sums

    def learn(
        self,
        feats_NF: Array,
        labels_N: Array,
        before_NF: Array | None = None,
        tried: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """Add a task's images, solve, and return the choice for the diagnosis.

        If the network has changed, and the features of these images before the change are given,
        the old sums are moved along (`ClassSums.follow`); otherwise they stay as measured. Images
        at the indices `tried` (default: all) are left out in turn. They must be images the network
        was not trained on.
        """
        hidden_NM, labels_N = self.lift(feats_NF), beside(labels_N, self.sums.means_CM)
        if before_NF is not None:
            self.sums.follow(self.lift(before_NF), hidden_NM)
        rows = slice(None) if tried is None else tried
        if self.sums.cut:
            uncut = self.sums.uncut()
            uncut.add(hidden_NM, labels_N)
            found = self._chosen(uncut, hidden_NM[rows], labels_N[rows])
            self.sums.add(hidden_NM, labels_N)
            self._round()
            found = found._replace(head=self._head_at(found.choice))
        else:
            self.sums.add(hidden_NM, labels_N)
            self._round()
            found = self._chosen(self._rounded, hidden_NM[rows], labels_N[rows])
        self._settle(found, hidden_NM[rows])
        self.sums = self._rounded
        left_out = {"images": self.choice.left_out, "accuracy": self.choice.accuracy}
        return {"head": self.choice.kind, "penalty": self.choice.penalty, "left_out": left_out}

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only, in this order."""
        factor = self._factor
        self.sums.take(remaining)
        self._resolve(factor)

    def merge(self, other: "ClosedForm", numbers: Sequence[int]) -> None:
        """Take up all that another classifier knows; its class i is ``numbers[i]`` here."""
        factor = (self._factor * other._factor) ** 0.5
        if other.choice.kind == self.choice.kind:
            self.temperature = self.temperature.joined(other.temperature)
            self.threshold = self.threshold.joined(other.threshold)
        elif other.choice.left_out > self.choice.left_out:  # it has more evidence
            factor, self.choice = other._factor, other.choice
            self.temperature, self.threshold = other.temperature, other.threshold
        else:
            factor = self._factor
        self.sums.merge(other.sums.renumbered(numbers))
        self.evidence = self.evidence + other.evidence
        self._resolve(factor)

    def observe(self, feats_BF: Array, labels_B: Array) -> None:
        """Add a batch to the sums; the classifier is solved when scores are next asked for."""
        check_finite(feats_BF, "the features of a batch")
        self.sums.add(self.lift(feats_BF), beside(labels_B, self.sums.means_CM))
        self._settled = False

    def take_up(self, sums: ClassSums, numbers: Sequence[int], classes: int) -> None:
        """Add sums of images, of which class i is ``numbers[i]`` here, and leave it at that.

        `learn` solves them. Room is made at once for so many classes, and what is left of it goes
        by `cut_to`.
        """
        self.sums.make_room(classes)
        self.sums.merge(sums, numbers)
        self._settled = False

    def rest(self) -> None:
        """Round the sums to what is stored, without solving them."""
        self._round()
        self.sums = self._rounded

    def cut_to(self, classes: int) -> None:
        """Keep so many classes; the others have no images."""
        if self.sums.classes > classes:
            self.sums.take(range(classes))

    def logits(self, feats_BF: Array) -> Array:
        """Return logits [B, C], whose softmax is calibrated; there may be any leading axes."""
        return calibrated(self.scores(feats_BF), self.temperature.value)

    def scores(self, feats_BF: Array) -> Array:
        """Return scores [B, C], linear in the hidden features.

        A class mean's own score is one above the others on average.
        """
        self._settle_if_needed()
        hidden_KM = self.lift(feats_BF.reshape(-1, feats_BF.shape[-1]))
        scores_KC = hidden_KM @ self.weights_CM.T + self.bias_C
        return scores_KC.reshape(*feats_BF.shape[:-1], len(self.bias_C))

    def _round(self) -> None:
        """Set `_rounded`, the sums in their stored precision; `sums` itself does not change."""
        self._rounded, self.resting = rounded(self.sums, self.precision)

    def _chosen(self, sums: ClassSums, hidden_NM: Array, labels_N: Array) -> Found:
        """Choose by leave-one-out over these images; the scores are in their own unit."""
        return self._found(sums, hidden_NM, labels_N, self.kinds, self.penalty)

    def _found(
        self,
        sums: ClassSums,
        hidden_NM: Array,
        labels_N: Array,
        kinds: Sequence[Kind],
        penalty: float | None,
    ) -> Found:
        how = kinds, penalty, self.absolute, self.tokens_M
        found = choose(sums, hidden_NM, labels_N, *how, self.evidence)
        unit = unit_of(found.head, sums.means_CM)
        return found._replace(scores_NC=found.scores_NC / unit, fitted_NC=found.fitted_NC / unit)

    def _head_at(self, choice: Choice) -> Linear:
        return system_of(self._rounded, choice.kind, self.tokens_M).head(choice.penalty)

    def _settle(self, found: Found, hidden_NM: Array) -> None:
        """Become the classifier that was found by leave-one-out over some of these images."""
        head, choice = found.head, found.choice
        check_finite(head.weights_MC, "the weights of the classifier")
        unit = unit_of(head, self._rounded.means_CM)
        exact_CM = head.weights_MC.T / unit
        self.resting_weights = self._rested(exact_CM)
        self.weights_CM = self._woken(self.resting_weights)
        lost_CM = exact_CM - beside(self.weights_CM, exact_CM)  # lost by rounding
        centre_M = self._rounded.means_CM.mean(0)  # the bias makes up for it at the centre
        self.bias_C = self._plain(head.bias_C / unit + lost_CM @ centre_M)
        known = self.temperature if choice.kind == self.choice.kind else Temperature()
        self.temperature = known.after(found.scores_NC, found.labels_N)
        if self.last_token is not None:
            self._find_familiarity(found, unit, self.last_token, hidden_NM)
        self.choice, self.evidence = choice, found.evidence
        self.tried = found.labels_N, found.scores_NC.argmax(1)
        self.tried_scores_NC = found.scores_NC
        self._settled = True

    def _find_familiarity(
        self, found: Found, unit: float, columns: slice, hidden_NM: Array
    ) -> None:
        """Set familiarity and threshold from the images that were left out in turn.

        Images are left out of the classifier of the uncut sums, which differs slightly from this
        one, of class records. So how far that changes an image's scores is measured there and
        added here.
        """
        sums, regression = self._rounded, found.choice.kind == "ridge"
        of_means_CC = found.head.scores(sums.means_CM) / unit
        self.familiarity = familiarity_of(sums, of_means_CC, unit, regression, columns)
        known = self.threshold if found.choice.kind == self.choice.kind else Threshold()
        tried_NM = hidden_NM[found.rows_N]
        fitted_NC = to_numpy(found.head.scores(exact(tried_NM))) / unit
        scores_NC = fitted_NC + found.scores_NC - found.fitted_NC
        familiar_N = left_out(self.familiarity, scores_NC, to_numpy(tried_NM), sums)
        self.threshold = known.after(familiar_N, sums.classes)

    def _settle_if_needed(self) -> None:
        """Solve after observed batches, when no images are at hand for leave-one-out."""
        if not self._settled:
            self._solve_alone(self.kinds, self.penalty)

    @property
    def _factor(self) -> float:
        """Return the chosen penalty over the usual one; infinite for the nearest class mean."""
        if self.choice.penalty == NEAREST:
            return math.inf
        usual = usual_penalty(self.choice.kind, self.sums.typical, self.sums.width)
        return self.choice.penalty / usual

    def _resolve(self, factor: float) -> None:
        """Solve the chosen kind again for other classes, when no images are at hand.

        The penalty is the usual one times the given factor. The sums are rounded from here on.
        """
        kind = self.choice.kind
        usual = usual_penalty(kind, self.sums.typical, self.sums.width)
        found = NEAREST if factor == math.inf else factor * usual
        self._solve_alone((kind,), self.penalty or found)
        self.sums = self._rounded

    def _solve_alone(self, kinds: Sequence[Kind], penalty: float | None) -> None:
        """Solve without leave-one-out."""
        self._round()
        nothing = self.sums.means_CM[:0]
        labels_0 = from_numpy(np.zeros(0, np.int64), nothing)
        self._settle(self._found(self._rounded, nothing, labels_0, kinds, penalty), nothing)

    def _rested(self, weights_CM: Array) -> dict[str, Array]:
        if self.precision == LEAST:
            return dict(zip(("values", "step"), in_steps(weights_CM, "int16"), strict=True))
        return {"values": self._plain(weights_CM)}

    def _woken(self, resting: dict[str, Array]) -> Array:
        """Return the weights [C, M] in float32, as they predict."""
        weights_CM, step_M = self._plain(resting["values"]), resting.get("step")
        return weights_CM if step_M is None else weights_CM * self._plain(step_M)

    def _plain(self, array: Array) -> Array:
        """Return the array in float32, on the features' device."""
        array = beside(cast(array, "float32"), self.bias_C)
        return array if library(array) is np else array.contiguous()

    def state(self) -> dict[str, Array]:
        """Return what a resumed run needs. From here on the sums are rounded, here as there."""
        self._settle_if_needed()
        self.sums = self._rounded
        kind, *numbers = astuple(self.choice) + astuple(self.temperature)
        chosen = np.array([float(KINDS.index(kind)), *numbers])
        return {
            **{SUMS + name: array for name, array in self.resting.items()},
            **{WEIGHTS + name: array for name, array in self.resting_weights.items()},
            "classifier/bias": self.bias_C,
            "classifier/chosen": from_numpy(chosen, self.sums.means_CM),
            "classifier/evidence": from_numpy(self.evidence.array(), self.sums.means_CM),
        }

    def load_state(self, state: dict[str, Array]) -> None:
        chosen = to_numpy(state["classifier/chosen"]).tolist()
        kind, penalty, count, accuracy, temperature, in_all = chosen
        choice = Choice(KINDS[int(kind)], penalty, int(count), accuracy)
        self.restore(under(SUMS, state), choice, Temperature(temperature, int(in_all)))
        self.set_weights(under(WEIGHTS, state), state["classifier/bias"])
        if "classifier/evidence" in state:  # older states have none
            self.evidence = Evidence.from_array(to_numpy(state["classifier/evidence"]))

    def restore(self, resting: dict[str, Array], choice: Choice, temperature: Temperature) -> None:
        """Take over stored sums and the choice that was made.

        The weights follow, by `set_weights` or `solve_again`.
        """
        self.resting = resting
        awake(self.sums, resting)
        self._rounded = self.sums
        self.choice, self.temperature = choice, temperature

    def set_weights(self, weights: dict[str, Array], bias_C: Array) -> None:
        """Take over stored weights, which were solved from these sums."""
        self.resting_weights, self.bias_C = weights, bias_C
        self.weights_CM = self._woken(weights)
        self._settled = True

    def solve_again(self) -> None:
        """Solve restored sums by the choice that was made before."""
        nothing, no_rows = self.sums.means_CM[:0], np.zeros(0, np.int64)
        none_NC = np.zeros((0, self.sums.classes))
        head = self._head_at(self.choice)
        found = Found(self.choice, head, none_NC, none_NC, no_rows, no_rows, self.evidence)
        self._settle(found, nothing)


def of_last_token(
    kind: Kind, width: int, columns: int, seed: int, precision: Precision, like: Array
) -> ClosedForm:
    """Return a head over the last CLS token and random columns of it; its penalty is chosen."""
    lift = Lift(np.ones(width), columns, seed, like)
    return ClosedForm(lift, pooled(lift.width, like), [kind], None, precision, like)

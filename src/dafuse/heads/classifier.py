"""A classifier in closed form that learns: its sums, what rests of them, what is chosen.

It is given features, by lessons (`learn`) or as they come (`observe`), and asked for scores. The
sums are of hidden features, to which a fixed map lifts those of the network. Between lessons they
rest in the precision asked for; the classifier is solved from sums that have been so rounded, so
that one that is loaded again goes on as if it had never stopped. Asking for scores changes no sums.

All of it works on numpy arrays and on torch tensors (`heads.arrays`).
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from dafuse.heads.arrays import Array, beside, check_finite, from_numpy, library, to_numpy
from dafuse.heads.choice import Choice, choose
from dafuse.heads.closed_form import KINDS, Kind
from dafuse.heads.confidence import Temperature, calibrated, unit_of
from dafuse.heads.drift import follow
from dafuse.heads.lifting import Lift
from dafuse.heads.resting import LEAST, Precision, at_rest, awake, cast, in_steps, rounded
from dafuse.heads.sums import ClassSums, pooled

SUMS, WEIGHTS = "statistics/sums.", "classifier/weights."  # how names in a state begin


class ClosedForm:
    """Sums over hidden features, and the classifier that follows from them."""

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
    ) -> None:
        """Start without images. A penalty that is not given is chosen (`heads.choice`).

        Columns that are CLS tokens (1 in ``tokens_M``) count more with few images.
        The classifier is in the library and on the device of `like`, where features come from.
        """
        self.lift, self.sums, self.kinds, self.precision = lift, sums, tuple(kinds), precision
        self.penalty, self.absolute, self.tokens_M = penalty, absolute, tokens_M
        self.choice = Choice(KINDS[0], 0.0, 0, 0.0)
        self.temperature = Temperature()
        self.weights_CM = from_numpy(np.zeros((0, sums.width), np.float32), like)
        self.bias_C = self.weights_CM[:, 0]
        self.resting_weights = self._rested(self.weights_CM)  # what outlives a lesson of these
        self.resting = at_rest(sums, precision)  # what outlives a lesson of the sums
        self._rounded = sums  # the sums as they rest, of which the classifier is
        self._settled = True  # the classifier is that of the sums

    def learn(
        self, feats_NF: Array, labels_N: Array, before_NF: Array | None = None
    ) -> dict[str, Any]:
        """Add the images of a task and solve; what was chosen, for the diagnosis.

        Where the network has changed, and features of these images before that are given, the old
        sums follow (`heads.drift`). Otherwise they stay as they were measured.
        """
        hidden_NM, labels_N = self.lift(feats_NF), beside(labels_N, self.sums.means_CM)
        if before_NF is not None:
            follow(self.sums, self.lift(before_NF), hidden_NM)
        self.sums.add(hidden_NM, labels_N)
        self._settle(hidden_NM, labels_N)
        self.sums = self._rounded
        left_out = {"images": self.choice.left_out, "accuracy": self.choice.accuracy}
        return {"head": self.choice.kind, "penalty": self.choice.penalty, "left_out": left_out}

    def observe(self, feats_BF: Array, labels_B: Array) -> None:
        """Add a batch to the sums; the classifier follows when it is asked for."""
        check_finite(feats_BF, "the features of a batch")
        self.sums.add(self.lift(feats_BF), beside(labels_B, self.sums.means_CM))
        self._settled = False

    def logits(self, feats_BF: Array) -> Array:
        """[B, C], whose softmax is a calibrated probability; for any number of leading axes."""
        return calibrated(self.scores(feats_BF), self.temperature.value)

    def scores(self, feats_BF: Array) -> Array:
        """[B, C], linear in the hidden features: a class mean's own is one above the others."""
        self._settle_if_needed()
        hidden_KM = self.lift(feats_BF.reshape(-1, feats_BF.shape[-1]))
        scores_KC = hidden_KM @ self.weights_CM.T + self.bias_C
        return scores_KC.reshape(*feats_BF.shape[:-1], len(self.bias_C))

    def _settle(self, hidden_NM: Array, labels_N: Array) -> None:
        """Solve, of the sums rounded to the precision they rest in; they stay as they are."""
        self._rounded, self.resting = rounded(self.sums, self.precision)
        how = self.kinds, self.penalty, self.absolute, self.tokens_M
        found = choose(self._rounded, hidden_NM, labels_N, *how)
        check_finite(found.head.weights_MC, "the weights of the classifier")
        unit = unit_of(found.head, self._rounded.means_CM)
        exact_CM = found.head.weights_MC.T / unit
        self.resting_weights = self._rested(exact_CM)
        self.weights_CM = self._woken(self.resting_weights)
        lost_CM = exact_CM - beside(self.weights_CM, exact_CM)  # by rounding
        centre_M = self._rounded.means_CM.mean(0)  # where the bias makes up for it
        self.bias_C = self._plain(found.head.bias_C / unit + lost_CM @ centre_M)
        known = self.temperature if found.choice.kind == self.choice.kind else Temperature()
        self.temperature = known.after(found.scores_NC / unit, found.labels_N)
        self.choice = found.choice
        self._settled = True

    def _settle_if_needed(self) -> None:
        """After batches that were observed; with nothing at hand to leave out."""
        if not self._settled:
            nothing = self.sums.means_CM[:0]
            self._settle(nothing, from_numpy(np.zeros(0, np.int64), nothing))

    def _rested(self, weights_CM: Array) -> dict[str, Array]:
        if self.precision == LEAST:
            return dict(zip(("values", "step"), in_steps(weights_CM, 0, "int16"), strict=True))
        return {"values": self._plain(weights_CM)}

    def _woken(self, resting: dict[str, Array]) -> Array:
        """The weights [C, M] in float32, which predict."""
        weights_CM, step_M = self._plain(resting["values"]), resting.get("step")
        return weights_CM if step_M is None else weights_CM * self._plain(step_M)

    def _plain(self, array: Array) -> Array:
        """In float32, where the features come from."""
        array = beside(cast(array, "float32"), self.bias_C)
        return array if library(array) is np else array.contiguous()

    def state(self) -> dict[str, Array]:
        """What a resumed run goes on from, and this one too: from here on the sums are rounded."""
        self._settle_if_needed()
        self.sums = self._rounded
        kind, *numbers = astuple(self.choice) + astuple(self.temperature)
        chosen = np.array([float(KINDS.index(kind)), *numbers])
        return {
            **{SUMS + name: array for name, array in self.resting.items()},
            **{WEIGHTS + name: array for name, array in self.resting_weights.items()},
            "classifier/bias": self.bias_C,
            "classifier/chosen": from_numpy(chosen, self.sums.means_CM),
        }

    def load_state(self, state: dict[str, Array]) -> None:
        self.resting = _under(SUMS, state)
        awake(self.sums, self.resting)
        self._rounded = self.sums
        self.resting_weights = _under(WEIGHTS, state)
        self.weights_CM = self._woken(self.resting_weights)
        self.bias_C = state["classifier/bias"]
        chosen = to_numpy(state["classifier/chosen"]).tolist()
        kind, penalty, count, accuracy, temperature, in_all = chosen
        self.choice = Choice(KINDS[int(kind)], penalty, int(count), accuracy)
        self.temperature = Temperature(temperature, int(in_all))
        self._settled = True


def of_last_token(
    kind: Kind, width: int, columns: int, seed: int, precision: Precision, like: Array
) -> ClosedForm:
    """A head over the last CLS token with random columns beside it; its penalty is chosen."""
    lift = Lift(np.ones(width), columns, seed, like)
    return ClosedForm(lift, pooled(lift.width, like), [kind], None, precision, like)


def _under(start: str, state: dict[str, Array]) -> dict[str, Array]:
    return {
        name.removeprefix(start): array for name, array in state.items() if name.startswith(start)
    }

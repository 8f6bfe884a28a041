"""A closed-form classifier as a part of a method: its sums, what rests of them, what is chosen.

A method gives features, by tasks (`learn`) or as they come (`observe`), and asks for scores. The
sums are of hidden features, to which a fixed map lifts those of the network. Between tasks they
rest in the precision asked for; the classifier is solved from sums that have been so rounded, so
that a resumed run does the same as one that was never stopped. Asking for scores changes no sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dafuse.heads.choice import Choice, choose
from dafuse.heads.closed_form import KINDS, Kind
from dafuse.heads.confidence import Temperature, calibrated, unit_of
from dafuse.heads.drift import follow
from dafuse.heads.lifting import Lift
from dafuse.heads.resting import LEAST, Precision, at_rest, awake, in_steps, rounded
from dafuse.heads.sums import ClassSums, pooled
from dafuse.methods.options import check_finite
from dafuse.methods.packing import packed, unpacked


class ClosedForm:
    """Sums over hidden features, and the classifier that follows from them."""

    def __init__(
        self,
        lift: Callable[[Tensor], Tensor],
        sums: ClassSums,
        kinds: Sequence[Kind],
        penalty: float | None,
        precision: Precision,
        device: torch.device,
        absolute: bool = False,
    ) -> None:
        """Start without images. A penalty that is not given is chosen (`heads.choice`)."""
        self.lift, self.sums, self.kinds, self.precision = lift, sums, tuple(kinds), precision
        self.penalty, self.absolute = penalty, absolute
        self.choice = Choice(KINDS[0], 0.0, 0, 0.0)
        self.temperature = Temperature()
        self.weights_CM = torch.zeros(0, sums.width, device=device)
        self.bias_C = torch.zeros(0, device=device)
        self.resting_weights = self._rested(self.weights_CM)  # what outlives a lesson of these
        self.resting = at_rest(sums, precision)  # what outlives a lesson of the sums
        self._rounded = sums  # the sums as they rest, of which the classifier is
        self._settled = True  # the classifier is that of the sums

    def learn(
        self, feats_NF: Tensor, labels_N: Tensor, before_NF: Tensor | None = None
    ) -> dict[str, Any]:
        """Add the images of a task and solve; what was chosen, for the diagnosis.

        Where the network has changed, and features of these images before that are given, the old
        sums follow (`heads.drift`). Otherwise they stay as they were measured.
        """
        hidden_NM, labels_N = self.lift(feats_NF), labels_N.to(self.sums.means_CM.device)
        if before_NF is not None:
            follow(self.sums, self.lift(before_NF), hidden_NM)
        self.sums.add(hidden_NM, labels_N)
        self._settle(hidden_NM, labels_N)
        self.sums = self._rounded
        left_out = {"images": self.choice.left_out, "accuracy": self.choice.accuracy}
        return {"head": self.choice.kind, "penalty": self.choice.penalty, "left_out": left_out}

    def observe(self, feats_BF: Tensor, labels_B: Tensor) -> None:
        """Add a batch to the sums; the classifier follows when it is asked for."""
        check_finite(feats_BF, "the features of a batch")
        self.sums.add(self.lift(feats_BF), labels_B.to(self.sums.means_CM.device))
        self._settled = False

    def logits(self, feats_BF: Tensor) -> Tensor:
        """[B, C], whose softmax is a calibrated probability; for any number of leading axes."""
        return calibrated(self.scores(feats_BF), self.temperature.value)

    def scores(self, feats_BF: Tensor) -> Tensor:
        """[B, C], linear in the hidden features: a class mean's own is one above the others."""
        self._settle_if_needed()
        hidden_KM = self.lift(feats_BF.flatten(0, -2))
        scores_KC = hidden_KM @ self.weights_CM.T + self.bias_C
        return scores_KC.unflatten(0, feats_BF.shape[:-1])

    def _settle(self, hidden_NM: Tensor, labels_N: Tensor) -> None:
        """Solve, of the sums rounded to the precision they rest in; they stay as they are."""
        self._rounded, self.resting = rounded(self.sums, self.precision)
        found = choose(self._rounded, hidden_NM, labels_N, self.kinds, self.penalty, self.absolute)
        check_finite(found.head.weights_MC, "the weights of the classifier")
        unit = unit_of(found.head, self._rounded.means_CM)
        self.resting_weights = self._rested(found.head.weights_MC.T / unit)
        self.weights_CM = self._woken(self.resting_weights)
        lost_CM = found.head.weights_MC.T / unit - self.weights_CM  # by rounding
        centre_M = self._rounded.means_CM.mean(0)  # where the bias makes up for it
        self.bias_C = (found.head.bias_C / unit + lost_CM @ centre_M).to(self.bias_C)
        known = self.temperature if found.choice.kind == self.choice.kind else Temperature()
        self.temperature = known.after(found.scores_NC / unit, found.labels_N)
        self.choice = found.choice
        self._settled = True

    def _settle_if_needed(self) -> None:
        """After batches that were observed; with nothing at hand to leave out."""
        if not self._settled:
            nothing = self.sums.means_CM[:0]
            self._settle(nothing, torch.zeros(0, dtype=torch.int64, device=nothing.device))

    def _rested(self, weights_CM: Tensor) -> dict[str, Tensor]:
        if self.precision == LEAST:
            return dict(zip(("values", "step"), in_steps(weights_CM, 0, "int16"), strict=True))
        return {"values": weights_CM.to(self.bias_C).contiguous()}

    def _woken(self, resting: dict[str, Tensor]) -> Tensor:
        """The weights [C, M] in float32, which predict."""
        weights_CM = resting["values"].to(self.bias_C)
        return weights_CM * resting["step"].to(self.bias_C) if "step" in resting else weights_CM

    def state(self) -> dict[str, Tensor]:
        """What a resumed run goes on from, and this one too: from here on the sums are rounded."""
        self._settle_if_needed()
        self.sums = self._rounded
        kind, *numbers = astuple(self.choice) + astuple(self.temperature)
        chosen = torch.tensor([float(KINDS.index(kind)), *numbers], dtype=torch.float64)
        return {
            **packed("statistics/sums", self.resting),
            **packed("classifier/weights", self.resting_weights),
            "classifier/bias": self.bias_C,
            "classifier/chosen": chosen,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.resting = unpacked(state, "statistics/sums")
        awake(self.sums, self.resting)
        self._rounded = self.sums
        self.resting_weights = unpacked(state, "classifier/weights")
        self.weights_CM = self._woken(self.resting_weights)
        self.bias_C = state["classifier/bias"]
        kind, penalty, count, accuracy, temperature, in_all = state["classifier/chosen"].tolist()
        self.choice = Choice(KINDS[int(kind)], penalty, int(count), accuracy)
        self.temperature = Temperature(temperature, int(in_all))
        self._settled = True


def of_last_token(
    kind: Kind, width: int, columns: int, seed: int, precision: Precision, device: torch.device
) -> ClosedForm:
    """A head over the last CLS token with random columns beside it; its penalty is chosen."""
    nowhere = torch.zeros(0, device=device)
    lift = Lift(np.ones(width), columns, seed, nowhere)
    return ClosedForm(lift, pooled(lift.width, nowhere), [kind], None, precision, device)

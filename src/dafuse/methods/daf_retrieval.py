"""DAF with retrieval: the global adapter, and the most certain of all task adapters beside it.

Liu et al., "Dynamical Adapter Fusion", arXiv 2601.21341, appendix "Enhancing DAF with Task-Specific
Retrieval". Learning is that of DAF. A prediction adds TUNA's entropy-based selection: the
probabilities under the task adapter whose prediction, by the one shared classifier, has the least
entropy.

This gives up the purpose of DAF: it keeps an adapter for each task, so it grows with the stream,
and a prediction after task t costs t + 1 forward passes instead of one. The paper does not say
under which adapter the shared classifier is built; here, as for DAF, it is ``stats_adapter``.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dafuse.backbones.adapter import AdapterBank
from dafuse.data.stream import Task
from dafuse.heads.logits import most_certain
from dafuse.methods.contract import prefixed, unprefixed
from dafuse.methods.daf import DAF
from dafuse.methods.options import Options


@dataclass(kw_only=True, eq=False)
class DAFRetrieval(DAF):
    """DAF that keeps every task's adapter and predicts with all of them."""

    name = "daf-retrieval"
    summary = "DAF beside the most certain task adapter; no longer of constant size"
    keeps = "DAF's two adapters, the adapter of each task, a Gaussian and weights for each class"
    grows = True

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return t + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bank = AdapterBank(self.adapter_scale)
        self.everyone = AdapterBank(self.adapter_scale)  # the bank, and the global adapter

    def learn(self, task: Task) -> dict[str, Any]:
        diagnosis = super().learn(task)
        self.bank.append(self.task_adapter.tensors())  # θ_t as it was trained, before the fusion
        self.everyone = self.bank.with_one_more(self.global_adapter.tensors())
        return diagnosis

    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Return the sum of two probabilities for each class."""
        return self.predictions(images_B3SS)["retrieval"]

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        """Return the scores with retrieval, and those of the global adapter alone: plain DAF."""
        feats_BKD = self.trainer.encode(images_B3SS, self.everyone)
        logits_BKC = self.scores(feats_BKD)
        alone = logits_BKC[:, -1].softmax(1)
        return {"retrieval": alone + most_certain(logits_BKC[:, :-1]), "global": alone}

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **prefixed("modules/bank", self.bank.stacked)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.bank.stacked = unprefixed(state, "modules/bank")
        self.everyone = self.bank.with_one_more(self.global_adapter.tensors())

"""APER with an adapter: the first task adapts the network, then class means are enough.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and
Adaptivity are All You Need", arXiv 2303.07338. An adapter is trained on the first task only. The
features of the frozen and of the adapted network stand side by side, so that the pre-training's
knowledge of later classes is not lost. The prototype of a class is its mean in this space.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter


@dataclass(kw_only=True, eq=False)
class APER(Method):
    """Class means in the features of the frozen network and of one adapted to the first task.

    Args:
        epochs: training epochs over the first task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of the adapter's bottleneck
    """

    name = "aper"
    summary = "APER: an adapter trained on the first task, class means in old and adapted features"
    paper = "https://arxiv.org/abs/2303.07338"
    needs = "adapters"
    keeps = "the first task's adapter, weights for each class"
    trains_once = True

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)
        self.weights_CE = torch.zeros(0, 2 * self.trainer.network.width, device=self.trainer.device)

    def learn(self, task: Task) -> dict[str, Any]:
        if task.number == 1:
            schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
            fit_with_proxy(self.trainer, task, self.adapter, schedule)
        frozen_ND, labels_N = self.trainer.features(task.train, None)
        adapted_ND, _ = self.trainer.features(task.train, self.adapter)
        feats_NE = torch.cat([frozen_ND, adapted_ND], dim=1)
        check_finite(feats_NE, f"the features after task {task.number}")
        new_CE = prototypes(feats_NE, labels_N, task.first, task.size)
        self.weights_CE = torch.cat([self.weights_CE, new_CE])
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        networks = (None, self.adapter)
        feats_BE = torch.cat([self.trainer.encode(images_B3SS, a) for a in networks], dim=1)
        return cosine_logits(feats_BE, self.weights_CE)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/adapter", self.adapter.tensors()),
            "classifier/rows": self.weights_CE,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.adapter.set(unprefixed(state, "modules/adapter"))
        self.weights_CE = state["classifier/rows"]

"""Finetune: the whole network is trained on each task in turn, and nothing protects the past.

This is the lower bound of every comparison. It has no paper of its own; `paper` names the
comparison (Liu et al., arXiv 2601.21341). Public code takes the cross-entropy of a later task over
that task's own logits, which forgets far less than the field's tables print. Those fit the loss
over all seen classes: `local_ce=False`. With either loss, the optimiser has the weights of all
classes, so under the local loss those of old classes only shrink a little, by weight decay.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.linear import linear_kaiming_init, linear_logits
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, PositiveInt
from dafuse.methods.schedule import Group, Schedule, constant
from dafuse.methods.training import init_class_weights


@dataclass(kw_only=True, eq=False)
class Finetune(Method):
    """The whole network and a linear head that grows with the classes.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of network and head, constant
        first_weight_decay: weight decay of SGD in the first task
        weight_decay: weight decay of SGD in every later task
        local_ce: cross-entropy over the task's own classes, not over all seen ones
    """

    name = "finetune"
    summary = "the whole network trained on each task in turn: the lower bound"
    paper = "https://arxiv.org/abs/2601.21341"
    needs = "whole network"
    keeps = "the network and weights for each class"

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 128
    lr: NonNegativeFloat = 1e-3
    first_weight_decay: NonNegativeFloat = 5e-4
    weight_decay: NonNegativeFloat = 2e-4
    local_ce: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        network = self.trainer.network
        self.network = network.trainable_copy()
        self.weights_CE = torch.zeros(0, network.width + 1, device=self.trainer.device)

    def learn(self, task: Task) -> dict[str, Any]:
        new_CE = init_class_weights(self.trainer, task.index, task.size, init=linear_kaiming_init)
        weights_CE = nn.Parameter(torch.cat([self.weights_CE, new_CE]))
        first = task.first if self.local_ce else 0  # the first class that competes in the loss

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, None, self.network)
            return F.cross_entropy(linear_logits(feats_BD, weights_CE[first:]), labels_B - first)

        weight_decay = self.first_weight_decay if task.number == 1 else self.weight_decay
        schedule = Schedule(self.epochs, self.batch_size, self.lr, weight_decay, decay=constant)
        trained = Group([*self.network.parameters(), weights_CE])
        self.trainer.fit(task, None, loss, [trained], schedule)
        check_finite(weights_CE, f"the class weights after task {task.number}")
        self.weights_CE = weights_CE.detach()
        return {}

    @property
    def least_classes(self) -> int:
        return 2 if self.local_ce else 1

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return linear_logits(self.trainer.encode(images_B3SS, None, self.network), self.weights_CE)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/network", self.network.state_dict()),
            "classifier/rows": self.weights_CE,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(unprefixed(state, "modules/network"))
        self.weights_CE = state["classifier/rows"]

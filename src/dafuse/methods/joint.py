"""Joint training: with every task, all images seen so far are learned together from the start.

This is the upper bound of a comparison, as nothing can be forgotten. It has no paper of its own;
`paper` names the comparison (Liu et al., arXiv 2601.21341). It keeps every image and trains from
the start with each task, at a cost that grows with the square of the tasks. If you only want the
last accuracy, give it all classes as one task.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.data.dataset import ImageSet
from dafuse.data.exemplars import NOTHING, ExemplarMemory
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.linear import linear_kaiming_init, linear_logits
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, PositiveInt
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import init_adapter, init_class_weights


@dataclass(kw_only=True, eq=False)
class Joint(Method):
    """All classes at once: one adapter, or the whole network, and one linear head.

    Args:
        tune: what is trained: an adapter on the frozen network, or the whole network
        epochs: training epochs over all images seen so far, with each task
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls along a cosine. For the whole network use 1e-3
        weight_decay: weight decay of SGD, on the adapter or network and the head
        adapter_rank: width of the adapter's bottleneck, if an adapter is trained
    """

    name = "joint"
    summary = "all images seen so far, learned together from the start: the upper bound"
    paper = "https://arxiv.org/abs/2601.21341"
    keeps = "every image, the adapter or the network, and weights for each class"
    keeps_images = True

    tune: Literal["adapter", "full"] = "adapter"
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        network, whole = self.trainer.network, self.tune == "full"
        self.adapter: Adapter | None = None if whole else self._new_adapter()
        self.network = network.trainable_copy() if whole else network
        self.tuned: nn.Module = self.adapter or self.network
        self.weights_CE = torch.zeros(0, network.width + 1, device=self.trainer.device)
        self.memory = ExemplarMemory(self.trainer.kept_images(NOTHING, NOTHING))

    def learn(self, task: Task) -> dict[str, Any]:
        self.memory.add(task.train)
        self._start_again()
        weights_CE = nn.Parameter(
            init_class_weights(self.trainer, task.index, task.seen, init=linear_kaiming_init)
        )

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            return F.cross_entropy(linear_logits(self._features(images_B3SS), weights_CE), labels_B)

        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        trained = Group([*self.tuned.parameters(), weights_CE])
        self.trainer.fit(task, self.adapter, loss, [trained], schedule, images=self.memory.images)
        check_finite(weights_CE, f"the class weights after task {task.number}")
        self.weights_CE = weights_CE.detach()
        return {"images": len(self.memory.images)}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return linear_logits(self._features(images_B3SS), self.weights_CE)

    def exemplars(self) -> ImageSet:
        return self.memory.images

    def _features(self, images_B3SS: Tensor) -> Tensor:
        return self.trainer.encode(images_B3SS, self.adapter, self.network)

    def _start_again(self) -> None:
        start = self._new_adapter() if self.tune == "adapter" else self.trainer.network
        self.tuned.load_state_dict(start.state_dict())

    def _new_adapter(self) -> Adapter:
        return init_adapter(self.trainer, "joint", self.adapter_rank)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/tuned", self.tuned.state_dict()),
            "classifier/rows": self.weights_CE,
            **prefixed("exemplars/images", self.memory.tensors()),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.tuned.load_state_dict(unprefixed(state, "modules/tuned"))
        self.weights_CE = state["classifier/rows"]
        self.memory.set(unprefixed(state, "exemplars/images"))

"""MEMO: one shared trunk, and a last block of its own for each task.

Zhou et al., "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental Learning",
arXiv 2205.13218. Shallow blocks learn much the same in every task, so only the last block is added
for each: the first task trains trunk and tail, later ones train a new tail on the frozen trunk. The
concatenated features of all tails go to one linear head. Some images of each class are kept, by
herding. The paper splits a ResNet; here, as in public code, a ViT is split before its last block.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.tails import AllTokens, TailBank, split
from dafuse.backbones.vit import ViT
from dafuse.data.dataset import ImageSet
from dafuse.data.exemplars import NOTHING, ExemplarMemory, herded
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.linear import grown_weights, linear_kaiming_init, linear_logits
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, PositiveInt
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import init_class_weights


@dataclass(kw_only=True, eq=False)
class MEMO(Method):
    """Memory-efficient Expandable Model.

    Args:
        first_epochs: training epochs over the first task's images, for the trunk too
        epochs: training epochs over a later task's images and the kept ones
        batch_size: images in an optimiser step
        lr: learning rate at the start of each task; it falls to zero along a cosine
        weight_decay: weight decay of SGD
        auxiliary_weight: weight of the loss by which a new tail tells new classes from all old ones
        exemplars_per_class: images kept of each class, or all if it has fewer
    """

    name = "memo"
    summary = "a trunk trained once, then a new last block each task; one head over all of them"
    paper = "https://arxiv.org/abs/2205.13218"
    needs = "last block"
    keeps = "the trunk, a last block for each task, class weights, some images of each class"
    keeps_images = True
    grows = True  # by last blocks, which only compute the CLS token for a prediction: one pass

    first_epochs: PositiveInt = 10
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 32
    lr: NonNegativeFloat = 1e-3
    weight_decay: NonNegativeFloat = 5e-4
    auxiliary_weight: NonNegativeFloat = 1.0
    exemplars_per_class: PositiveInt = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        network = self.trainer.network
        assert isinstance(network, ViT)  # only a ViT can be split before its last block
        self.trunk, self.tail = split(network)  # the tail that is trained
        self.all_tokens = AllTokens()
        self.tails = TailBank(self.tail)
        self.weights_CE = torch.zeros(
            0, 1, device=self.trainer.device
        )  # only biases: no features yet
        self.memory = ExemplarMemory(self.trainer.kept_images(NOTHING, NOTHING))

    def learn(self, task: Task) -> dict[str, Any]:
        self.weights_CE = self._train_first(task) if task.number == 1 else self._train_tail(task)
        self.tails.append(self.tail)  # the next task's tail starts from its values
        feats_NKD, _ = self.trainer.features(task.train, self.tails, self.trunk)
        check_finite(feats_NKD, f"the features after task {task.number}")
        self.memory.add(herded(task.train, feats_NKD.flatten(1), self.exemplars_per_class))
        return {"exemplars": len(self.memory.images)}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        feats_BKD = self.trainer.encode(images_B3SS, self.tails, self.trunk)
        return linear_logits(feats_BKD.flatten(1), self.weights_CE)

    def exemplars(self) -> ImageSet:
        return self.memory.images

    def _train_first(self, task: Task) -> Tensor:
        """Train trunk, tail and head together; return the class weights."""
        weights_CE = self._grown_head(task)

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            tokens_BND = self.trainer.encode(images_B3SS, self.all_tokens, self.trunk)
            return F.cross_entropy(linear_logits(self._newest(tokens_BND), weights_CE), labels_B)

        trained = [*self.trunk.parameters(), *self.tail.parameters(), weights_CE]
        schedule = Schedule(self.first_epochs, self.batch_size, self.lr, self.weight_decay)
        self.trainer.fit(task, None, loss, [Group(trained)], schedule)
        return weights_CE.detach()

    def _train_tail(self, task: Task) -> Tensor:
        """Train a new tail beside the frozen trunk and tails, and the head; return its weights."""
        weights_CE = self._grown_head(task)
        start_AE = init_class_weights(
            self.trainer, f"{task.index}/auxiliary", task.size + 1, init=linear_kaiming_init
        )
        auxiliary_AE = nn.Parameter(start_AE)  # index 0 is for all old classes

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            with torch.no_grad():
                tokens_BND = self.trainer.encode(images_B3SS, self.all_tokens, self.trunk)
                with self.trainer.autocast():
                    old_BKD = self.tails.readout(tokens_BND).float()
            new_BD = self._newest(tokens_BND)
            logits_BC = linear_logits(torch.cat([old_BKD.flatten(1), new_BD], dim=1), weights_CE)
            targets_B = (labels_B - task.first + 1).clamp(min=0)
            auxiliary = F.cross_entropy(linear_logits(new_BD, auxiliary_AE), targets_B)
            return F.cross_entropy(logits_BC, labels_B) + self.auxiliary_weight * auxiliary

        trained = [*self.tail.parameters(), weights_CE, auxiliary_AE]
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        images = self.memory.joined(task.train)
        self.trainer.fit(task, None, loss, [Group(trained)], schedule, images=images)
        return weights_CE.detach()

    def _newest(self, tokens_BND: Tensor) -> Tensor:
        with self.trainer.autocast():
            return self.tail(tokens_BND).float()

    def _grown_head(self, task: Task) -> nn.Parameter:
        """Extend the head to the new tail's features and the new classes; old weights stay."""
        width = task.number * self.trainer.network.width
        start_CE = init_class_weights(
            self.trainer, task.index, task.seen, width, linear_kaiming_init
        )
        return nn.Parameter(grown_weights(start_CE, self.weights_CE))

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/trunk", self.trunk.state_dict()),
            **prefixed("modules/tails", self.tails.stacked),
            "classifier/rows": self.weights_CE,
            **prefixed("exemplars/kept", self.memory.tensors()),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.trunk.load_state_dict(unprefixed(state, "modules/trunk"))
        self.tails.stacked = unprefixed(state, "modules/tails")
        self.tail.load_state_dict(self.tails[-1])
        self.weights_CE = state["classifier/rows"]
        self.memory.set(unprefixed(state, "exemplars/kept"))

"""iCaRL: kept images, distillation from the network before the task, and the nearest class mean.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", arXiv 1611.07725. The
whole network learns the new images together with a few kept ones of every old class, chosen by
herding. Distillation keeps its logits of old classes near the earlier ones. The paper predicts by
the nearest mean of the kept images' features, while public tables usually quote the linear head;
both are recorded. The paper's losses are binary, one for each class; here, as in every comparison,
they are softmax cross-entropies.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.exemplars import NOTHING, ExemplarMemory, herded
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.heads.linear import linear_kaiming_init, linear_logits
from dafuse.heads.logits import distill
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, PositiveInt, Range
from dafuse.methods.schedule import Group, Schedule, constant
from dafuse.methods.training import init_class_weights


@dataclass(kw_only=True, eq=False)
class ICaRL(Method):
    """Incremental Classifier and Representation Learning.

    Args:
        epochs: training epochs over the task's images and the kept ones
        batch_size: images in an optimiser step
        lr: learning rate of network and head, constant
        first_weight_decay: weight decay of SGD in the first task
        weight_decay: weight decay of SGD in every later task
        temperature: temperature of the logits in the distillation
        exemplars_per_class: images kept of each class, or all if it has fewer
        predict: by the nearest mean of exemplars (nme) or by the linear head (cnn)
    """

    name = "icarl"
    summary = "the whole network with kept images and distillation; nearest mean of exemplars"
    paper = "https://arxiv.org/abs/1611.07725"
    needs = "whole network"
    keeps = "the network, weights and a mean for each class, some images of each class"
    keeps_images = True

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 128
    lr: NonNegativeFloat = 1e-3
    first_weight_decay: NonNegativeFloat = 5e-4
    weight_decay: NonNegativeFloat = 2e-4
    temperature: Annotated[float, Range(0.01, 100)] = 2.0
    exemplars_per_class: PositiveInt = 20
    predict: Literal["nme", "cnn"] = "nme"

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        self.network = network.trainable_copy()
        self.previous = network.trainable_copy().requires_grad_(False)  # as before the task
        self.weights_CE = torch.zeros(0, network.width + 1, device=device)
        self.means_CD = torch.zeros(0, network.width, device=device)
        self.memory = ExemplarMemory(self.trainer.kept_images(NOTHING, NOTHING))

    def learn(self, task: Task) -> dict[str, Any]:
        self.previous.load_state_dict(self.network.state_dict())
        self.weights_CE = self._train(task, old_CE=self.weights_CE)
        feats_ND, _ = self.trainer.features(task.train, None, self.network)
        check_finite(feats_ND, f"the features after task {task.number}")
        self.memory.add(herded(task.train, feats_ND, self.exemplars_per_class))
        self.means_CD = self._means(task)
        return {"exemplars": len(self.memory.images)}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return self.predictions(images_B3SS)[self.predict]

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        feats_BD = self.trainer.encode(images_B3SS, None, self.network)
        scores = {
            "nme": cosine_logits(feats_BD, self.means_CD, scale=1.0),  # unit vectors: nearest mean
            "cnn": linear_logits(feats_BD, self.weights_CE),
        }
        return {self.predict: scores[self.predict], **scores}

    def exemplars(self) -> ImageSet:
        return self.memory.images

    def _train(self, task: Task, old_CE: Tensor) -> Tensor:
        """Train network and class weights on the new and the kept images; return the weights."""
        new_CE = init_class_weights(self.trainer, task.index, task.size, init=linear_kaiming_init)
        weights_CE = nn.Parameter(torch.cat([old_CE, new_CE]))

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            if task.number == 1:
                feats_BD = self.trainer.encode(images_B3SS, None, self.network)
                return F.cross_entropy(linear_logits(feats_BD, weights_CE), labels_B)
            with torch.no_grad():
                before_BD = self.trainer.encode(images_B3SS, None, self.previous)
                before_BC = linear_logits(before_BD, old_CE)
            feats_BD = self.trainer.encode(images_B3SS, None, self.network)
            logits_BC = linear_logits(feats_BD, weights_CE)
            kept = distill(logits_BC[:, : task.first], before_BC, self.temperature)
            return F.cross_entropy(logits_BC, labels_B) + kept

        weight_decay = self.first_weight_decay if task.number == 1 else self.weight_decay
        schedule = Schedule(self.epochs, self.batch_size, self.lr, weight_decay, decay=constant)
        trained = Group([*self.network.parameters(), weights_CE])
        images = self.memory.joined(task.train)
        self.trainer.fit(task, None, loss, [trained], schedule, images=images)
        return weights_CE.detach()

    def _means(self, task: Task) -> Tensor:
        """Return each class's mean direction of its exemplars under the current network."""
        feats_ND, labels_N = self.trainer.features(self.memory.images, None, self.network)
        means_CD = prototypes(F.normalize(feats_ND, dim=1), labels_N, 0, task.seen)
        return F.normalize(means_CD, dim=1)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/network", self.network.state_dict()),
            "classifier/rows": self.weights_CE,
            "classifier/means": self.means_CD,
            **prefixed("exemplars/kept", self.memory.tensors()),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(unprefixed(state, "modules/network"))
        self.weights_CE = state["classifier/rows"]
        self.means_CD = state["classifier/means"]
        self.memory.set(unprefixed(state, "exemplars/kept"))

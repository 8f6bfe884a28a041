"""SLCA: the whole network learns slowly, and the classifier is aligned after each task.

Zhang et al., "SLCA: Slow Learner with Classifier Alignment for Continual Learning on a Pre-trained
Model", arXiv 2303.05118. The network's learning rate is a hundredth of the head's, so that little
is forgotten. Training all class weights on features drawn from the Gaussians of all classes then
corrects errors between tasks. The aligned weights only predict: as in the authors' code, the next
alignment starts from the weights before alignment. We follow the authors in the alignment's five
epochs; a public re-implementation takes three.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.stream import Task
from dafuse.heads.alignment import Gradient, shrink_with_age
from dafuse.heads.arrays import check_finite
from dafuse.heads.gaussians import ClassMemory
from dafuse.heads.linear import linear_logits, linear_normal_init
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, PositiveInt
from dafuse.methods.schedule import Group, Schedule, tenth_at
from dafuse.methods.training import aligned, init_class_weights

TEMPERATURE = 0.1  # temperature of the normalised logits


@dataclass(kw_only=True, eq=False)
class SLCA(Method):
    """Slow Learner with Classifier Alignment.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of the head; a tenth of it in the last tenth of ten or more epochs
        backbone_rate: the network's learning rate as a factor of the head's
        weight_decay: weight decay of SGD, on the network and the new class weights
        memory: the form in which a class's covariance is kept
        align_epochs: epochs of classifier alignment; 0 turns it off
        align_samples: features drawn for each class in each epoch
        align_lr: learning rate of the alignment
    """

    name = "slca"
    summary = "the whole network at a hundredth of the head's rate, then classifier alignment"
    paper = "https://arxiv.org/abs/2303.05118"
    needs = "whole network"
    keeps = "the network, a Gaussian and two sets of weights (trained, aligned) for each class"

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 64
    lr: NonNegativeFloat = 0.01
    backbone_rate: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    memory: Literal["full", "diagonal"] = "full"
    align_epochs: NonNegativeInt = 5
    align_samples: PositiveInt = 256
    align_lr: NonNegativeFloat = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        self.network = network.trainable_copy()
        self.trained_CE = torch.zeros(0, network.width + 1, device=device)
        self.aligned_CE = self.trained_CE.clone()  # the class weights that predict
        self.classes = ClassMemory(network.width, self.memory)
        self.task_of_C = torch.zeros(0, dtype=torch.int64, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        self.trained_CE = torch.cat([self.trained_CE, self._train(task)])
        self._remember(task)
        first = task.number == 1  # there is no other task to confuse
        self.aligned_CE = self.trained_CE.clone() if first else self._aligned(task)
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return linear_logits(self.trainer.encode(images_B3SS, None, self.network), self.aligned_CE)

    def _train(self, task: Task) -> Tensor:
        """Train the slow network and the new class weights, not the old; return the new ones."""
        new_CE = nn.Parameter(
            init_class_weights(self.trainer, task.index, task.size, init=linear_normal_init)
        )

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, None, self.network)
            return F.cross_entropy(linear_logits(feats_BD, new_CE), labels_B - task.first)

        slow = Group(self.network.parameters(), self.backbone_rate)
        schedule = Schedule(
            self.epochs, self.batch_size, self.lr, self.weight_decay, decay=tenth_at(0.9)
        )
        self.trainer.fit(task, None, loss, [slow, Group([new_CE])], schedule)
        return new_CE.detach()

    def _remember(self, task: Task) -> None:
        """Add Gaussians of the new classes under the current network; older ones stay."""
        feats_ND, labels_N = self.trainer.features(task.train, None, self.network)
        check_finite(feats_ND, f"the features after task {task.number}")
        self.classes.add(feats_ND, labels_N, task.first, task.size)
        self.task_of_C = F.pad(self.task_of_C, (0, task.size), value=task.index)

    def _aligned(self, task: Task) -> Tensor:
        sampler = self.classes.sampler(self.trainer.device).scaled(shrink_with_age(self.task_of_C))
        settings = self.align_epochs, self.align_samples, self.align_lr
        gradient = normalised_gradient(self.task_of_C)
        return aligned(self.trainer, task, self.trained_CE, sampler, *settings, gradient=gradient)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/network", self.network.state_dict()),
            **prefixed("statistics/class", self.classes.tensors),
            "statistics/task_of": self.task_of_C,
            "classifier/trained": self.trained_CE,
            "classifier/aligned": self.aligned_CE,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(unprefixed(state, "modules/network"))
        self.classes.tensors = unprefixed(state, "statistics/class")
        self.task_of_C = state["statistics/task_of"]
        self.trained_CE = state["classifier/trained"]
        self.aligned_CE = state["classifier/aligned"]


def normalised(logits_NC: Tensor, member_CT: Tensor) -> Tensor:
    """Return logits over the mean length of each task's part, so that none wins by its scale.

    ``member`` is 1 where a class belongs to a task, else 0.
    """
    squares_NT = logits_NC.square() @ member_CT
    lengths_NT = (squares_NT + 1e-14).sqrt()  # so the slope exists where all logits of a task are 0
    return logits_NC / lengths_NT.mean(1, keepdim=True) / TEMPERATURE


def normalised_gradient(task_of_C: Tensor) -> Gradient:
    """Return the gradient of the normalised logits' mean cross-entropy at the class weights."""
    member_CT = F.one_hot(task_of_C).float()

    def loss(weights_CE: Tensor, feats_ND: Tensor, labels_N: Tensor) -> Tensor:
        return F.cross_entropy(normalised(linear_logits(feats_ND, weights_CE), member_CT), labels_N)

    return torch.func.grad(loss)  # at the class weights, even where gradients are off

"""MOS: task adapters that are kept near each other, and a prediction that looks for the right one.

Sun et al., "MOS: Model Surgery for Pre-Trained Model-Based Class-Incremental Learning",
arXiv 2412.09441. One adapter goes on training from task to task; after every optimiser step it is
pulled towards the mean of the stored ones. A prediction starts with the task that prototypes
suggest and corrects itself: classify, take the adapter of the predicted class, classify again.

The released code merges once for each layer of each forward pass, thirteen times a step, and also
at test time, where every batch moves the stored adapters. Here, as in the paper, it merges once a
step, and predicting changes nothing. Prototypes are measured without dropout. The head grows with
the tasks, and nothing changes the weights of old classes, not even weight decay.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import AdapterBank
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosine_logits, prototypes, uniform_init
from dafuse.heads.gaussians import ClassMemory
from dafuse.heads.linear import linear_gradient, linear_logits, with_bias
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt, Share
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import aligned, init_adapter, init_class_weights

ORTH_TEMPERATURE = 0.8  # temperature of the similarities in `apart`
HEAD_RATE = 0.1  # the head's learning rate as a factor of the adapter's


@dataclass(kw_only=True, eq=False)
class MOS(Method):
    """Model Surgery: adapter merging, and self-refined retrieval of adapters.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of the adapter at the start of each task; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and the head, also in the alignment
        adapter_rank: width of each adapter's bottleneck
        merge: how far each step pulls the adapter towards the mean of the stored ones
        orth: weight of the loss that keeps features and class means apart
        rounds: max changes of a prediction to another task's adapter
        memory: the form in which a class's covariance is kept
        align_epochs: epochs of classifier alignment; 0 turns it off
        align_samples: features drawn for each class in each epoch
        align_lr: learning rate of the alignment
    """

    name = "mos"
    summary = "merged task adapters; predictions refine their choice of adapter"
    paper = "https://arxiv.org/abs/2412.09441"
    needs = "adapters"
    keeps = "the adapter of each task, a Gaussian, weights and a prototype for each class"
    grows = True

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.03
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 16
    merge: Share = 0.1
    orth: NonNegativeFloat = 0.1
    rounds: NonNegativeInt = 4
    memory: Literal["full", "diagonal"] = "full"
    align_epochs: NonNegativeInt = 30
    align_samples: PositiveInt = 240
    align_lr: NonNegativeFloat = 0.005

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return t

    def __post_init__(self) -> None:
        super().__post_init__()
        device, width = self.trainer.device, self.trainer.network.width
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)
        self.bank = AdapterBank(self.adapter.scale)
        self.classes = ClassMemory(width, self.memory)
        self.weights_CE = torch.zeros(0, width + 1, device=device)
        self.prototypes_CD = torch.zeros(0, width, device=device)  # under the first adapter
        self.task_of_C = torch.zeros(0, dtype=torch.long, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        self._train(task)
        self.bank.append(self.adapter.tensors())
        feats_N2D, labels_N = self.trainer.features(task.train, self.bank.take([0, -1]))
        check_finite(feats_N2D, f"the features after task {task.number}")
        first_ND, last_ND = feats_N2D.unbind(1)
        self.classes.add(last_ND, labels_N, task.first, task.size)
        if task.number > 1 and self.align_epochs:
            self._align(task)
        new_CD = prototypes(first_ND, labels_N, task.first, task.size)
        self.prototypes_CD = torch.cat([self.prototypes_CD, new_CD])
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Return the sum of two probabilities for each class."""
        feats_BKD = self.trainer.encode(images_B3SS, self.bank)
        nearest_BC = cosine_logits(feats_BKD[:, 0], self.prototypes_CD, scale=len(self.bank))
        task_B = self.task_of_C[nearest_BC.argmax(1)]
        task_B = refine(task_B, feats_BKD, self.weights_CE, self.task_of_C, self.rounds)
        every_B = torch.arange(len(task_B), device=task_B.device)
        refined_BC = linear_logits(feats_BKD[every_B, task_B], self.weights_CE)
        return refined_BC.softmax(1) + nearest_BC.softmax(1)

    def _train(self, task: Task) -> None:
        """Train the adapter on from its values after the last task, and new class weights."""
        if len(self.bank):
            self.adapter.set(self.bank[-1])
        weights_CD = init_class_weights(self.trainer, task.index, task.size, init=uniform_init)
        weights = nn.Parameter(with_bias(weights_CD))
        means_CD = self.classes.tensors["mean"].to(self.trainer.device)
        middle = self.bank.mean()

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, self.adapter)
            own = F.cross_entropy(linear_logits(feats_BD, weights), labels_B - task.first)
            if not self.orth:
                return own
            feats_BD = self.trainer.whole_batch(feats_BD)
            return own + self.orth * apart(torch.cat([means_CD, feats_BD]))

        @torch.no_grad()
        def merge() -> None:
            for name, parameter in self.adapter.named_parameters():
                parameter.lerp_(middle[name], self.merge)

        groups = [Group(self.adapter.parameters()), Group([weights], HEAD_RATE)]
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        after_step = merge if len(self.bank) else None
        self.trainer.fit(task, self.adapter, loss, groups, schedule, after_step=after_step)
        self.weights_CE = torch.cat([self.weights_CE, weights.detach()])
        self.task_of_C = F.pad(self.task_of_C, (0, task.size), value=task.index)

    def _align(self, task: Task) -> None:
        self.weights_CE = aligned(
            self.trainer,
            task,
            self.weights_CE,
            self.classes.sampler(self.trainer.device),
            self.align_epochs,
            self.align_samples,
            self.align_lr,
            self.weight_decay,
            gradient=linear_gradient,
        )

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/bank", self.bank.stacked),
            **prefixed("statistics/class", self.classes.tensors),
            "classifier/rows": self.weights_CE,
            "classifier/prototypes": self.prototypes_CD,
            "classifier/task_of": self.task_of_C,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.bank.stacked = unprefixed(state, "modules/bank")
        self.classes.tensors = unprefixed(state, "statistics/class")
        self.weights_CE = state["classifier/rows"]
        self.prototypes_CD = state["classifier/prototypes"]
        self.task_of_C = state["classifier/task_of"]


def apart(vectors_MD: Tensor) -> Tensor:
    """Return the cross-entropy of each vector being most similar to itself, among all of them.

    This is in the authors' code, not in the paper. The vectors are as long as features, so it is
    nearly zero with the field's networks.
    """
    similar_MM = vectors_MD @ vectors_MD.T / ORTH_TEMPERATURE
    return F.cross_entropy(similar_MM, torch.arange(len(vectors_MD), device=vectors_MD.device))


def refine(
    task_B: Tensor, feats_BKD: Tensor, weights_CE: Tensor, task_of_C: Tensor, rounds: int
) -> Tensor:
    """Return each image's final task: that of the class predicted under its adapter, repeatedly.

    Once an image's task no longer changes, the image stays there.
    """
    next_BK = task_of_C[linear_logits(feats_BKD, weights_CE).argmax(2)]
    for _ in range(rounds):
        task_B = next_BK.gather(1, task_B[:, None])[:, 0]
    return task_B

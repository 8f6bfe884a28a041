"""TUNA: an adapter for each task, chosen by its certainty, and a universal one made of all.

Wang et al., "Integrating Task-Specific and Universal Adapters for Pre-Trained Model-based
Class-Incremental Learning", arXiv 2508.08165. One adapter goes on training from task to task, and a
copy of each is kept. Each number of the universal adapter takes the sign that prevails in the
copies and the largest magnitude among those with this sign. A prediction adds the probabilities of
the universal adapter and of the task adapter whose prediction has the least entropy.

The released code differs: it uses the latest task's adapter in place of the universal one
(``predict=released``), trains the stored copies further, and shrinks the means of new classes
instead of old ones (``decay``). The first is an option here; the others follow the paper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import AdapterBank, Tensors, up_weights
from dafuse.data.stream import Task
from dafuse.heads.alignment import shrink_with_age
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosface, cosine_logits
from dafuse.heads.gaussians import ClassMemory
from dafuse.heads.logits import most_certain
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt, Share
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import aligned, init_adapter, init_class_weights

ALIGN_PERIOD = 5  # epochs after which the alignment's learning rate rises again


@dataclass(kw_only=True, eq=False)
class TUNA(Method):
    """Task-specific and universal adapters.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start of each task; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and the head
        adapter_rank: width of each adapter's bottleneck
        margin: margin by which the cosine of the true class must win in training
        orth: weight of the loss that keeps the adapter's directions apart from the stored ones'; it
            falls by e with each task
        memory: the form in which a class's covariance is kept
        align_epochs: epochs of classifier alignment; 0 turns it off
        align_samples: features drawn for each class in each epoch
        align_lr: learning rate of the alignment
        decay: shrink the means of old classes in the alignment, the more the older they are
        predict: the universal and the most certain adapter (paper), the universal one alone, or
            the latest and the most certain one (released)
    """

    name = "tuna"
    summary = "task adapters chosen by entropy, beside a universal one made by max-fusion"
    paper = "https://arxiv.org/abs/2508.08165"
    needs = "adapters"
    keeps = "the adapter of each task, a Gaussian and weights for each class"
    grows = True

    epochs: PositiveInt = 15
    batch_size: PositiveInt = 16
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 16
    margin: Share = 0.0
    orth: NonNegativeFloat = 1e-3
    memory: Literal["full", "diagonal"] = "full"
    align_epochs: NonNegativeInt = 30
    align_samples: PositiveInt = 80
    align_lr: NonNegativeFloat = 0.005
    decay: bool = False
    predict: Literal["paper", "universal", "released"] = "paper"

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return 1 if options.get("predict") == "universal" else t + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        device, width = self.trainer.device, self.trainer.network.width
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)
        self.universal = init_adapter(self.trainer, 0, self.adapter_rank)
        self.bank = AdapterBank(self.adapter.scale)
        self.everyone = AdapterBank(self.adapter.scale)  # the bank, and the universal one
        self.classes = ClassMemory(width, self.memory)
        self.weights_CD = torch.zeros(0, width, device=device)
        self.task_of_C = torch.zeros(0, dtype=torch.long, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        self._train(task)
        feats_ND, labels_N = self.trainer.features(task.train, self.adapter)
        check_finite(feats_ND, f"the features after task {task.number}")
        self.classes.add(feats_ND, labels_N, task.first, task.size)
        if task.number > 1 and self.align_epochs:
            self._align(task)
        self.bank.append(self.adapter.tensors())
        self._fuse()
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Return the sum of one or two probabilities for each class."""
        return next(iter(self.predictions(images_B3SS).values()))

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        """Return all three, the chosen first; the universal one alone needs one forward pass."""
        if self.predict == "universal":
            feats_BD = self.trainer.encode(images_B3SS, self.universal)
            return {"universal": cosine_logits(feats_BD, self.weights_CD).softmax(1)}
        feats_BKD = self.trainer.encode(images_B3SS, self.everyone)
        logits_BKC = cosine_logits(feats_BKD, self.weights_CD)
        latest, universal = logits_BKC[:, -2].softmax(1), logits_BKC[:, -1].softmax(1)
        certain = most_certain(logits_BKC[:, :-1])
        paper, released = universal + certain, latest + certain
        ways = {"paper": paper, "universal": universal, "released": released}
        return {self.predict: ways[self.predict], **ways}

    def _train(self, task: Task) -> None:
        """Train the adapter on from its values after the last task, and new class weights."""
        if len(self.bank):
            self.adapter.set(self.bank[-1])
        weights = nn.Parameter(init_class_weights(self.trainer, task.index, task.size))
        ups = up_weights(dict(self.adapter.named_parameters()))
        orth_weight = self.orth * math.exp(-task.number)
        stored_KLr = None
        if self.orth and len(self.bank):
            stored_KLr = mean_directions(up_weights(self.bank.stacked))

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, self.adapter)
            own = cosface(feats_BD, weights, labels_B - task.first, self.margin)
            if stored_KLr is None:
                return own
            return own + orth_weight * overlap(mean_directions(ups), stored_KLr)

        trained = Group([*self.adapter.parameters(), weights])
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        self.trainer.fit(task, self.adapter, loss, [trained], schedule)
        self.weights_CD = torch.cat([self.weights_CD, weights.detach()])
        self.task_of_C = F.pad(self.task_of_C, (0, task.size), value=task.index)

    def _align(self, task: Task) -> None:
        sampler = self.classes.sampler(self.trainer.device)
        if self.decay:
            sampler = sampler.scaled(shrink_with_age(self.task_of_C))
        settings = self.align_epochs, self.align_samples, self.align_lr
        self.weights_CD = aligned(
            self.trainer, task, self.weights_CD, sampler, *settings, period=ALIGN_PERIOD
        )

    def _fuse(self) -> None:
        """Set the universal adapter from those stored; after the first task it is that task's."""
        self.universal.set(max_fusion(self.bank.stacked))
        self.everyone = self.bank.with_one_more(self.universal.tensors())

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/bank", self.bank.stacked),
            **prefixed("statistics/class", self.classes.tensors),
            "classifier/rows": self.weights_CD,
            "classifier/task_of": self.task_of_C,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.bank.stacked = unprefixed(state, "modules/bank")
        self.classes.tensors = unprefixed(state, "statistics/class")
        self.weights_CD = state["classifier/rows"]
        self.task_of_C = state["classifier/task_of"]
        self._fuse()


def max_fusion(stacked: Tensors) -> Tensors:
    """Fuse a stack of adapters, as in an AdapterBank, number by number.

    Each takes the prevailing sign (that of the mean; zero counts as minus) and the largest
    magnitude among the adapters with this sign.
    """

    def fused(tensor_K: Tensor) -> Tensor:
        sign = torch.where(tensor_K.mean(0) > 0, 1.0, -1.0)
        return sign * (sign * tensor_K).clamp(min=0).amax(0)

    return {name: fused(tensor) for name, tensor in stacked.items()}


def mean_directions(ups: Sequence[Tensor]) -> Tensor:
    """Return the mean over D of each up-projection's rows at length 1 [..., L, r], of all blocks.

    Each is [L, D, r] for one adapter, or [K, L, D, r] for a stack of them.
    """
    # a layer that never learned is zero; the bound keeps its gradient small
    return torch.cat([F.normalize(up, dim=-1, eps=1e-6).mean(-2) for up in ups], dim=-2)


def overlap(own_Lr: Tensor, stored_KLr: Tensor) -> Tensor:
    """Return the sum over stored adapters of the mean over layers of |mean cosine of row pairs|.

    The mean over pairs of the products is the product of the means.
    """
    return (own_Lr * stored_KLr.detach()).sum(-1).abs().mean(-1).sum()

"""EASE: an adapter for each task, and a classifier over the subspaces of all of them.

Zhou et al., "Expandable Subspace Ensemble for Pre-Trained Model-Based Class-Incremental Learning",
arXiv 2403.12030. Each task trains an adapter from a random init and freezes it. A class has a
prototype in every adapter's subspace. When later subspaces are added its images are gone, so there
its prototype is a weighted mean of the later classes' prototypes, by their similarity to it in its
own subspace.

The public code assumes tasks of one size; here they may differ. As in the paper, similarity is
measured in the old class's own subspace.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import AdapterBank
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import SCALE, prototypes
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter


@dataclass(kw_only=True, eq=False)
class EASE(Method):
    """Expandable Subspace Ensemble.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start of each task; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of each adapter's bottleneck
        cross_weight: total weight of the other tasks' subspaces; a class's own weighs 1
    """

    name = "ease"
    summary = "an adapter for each task; old prototypes synthesised in the new subspaces"
    paper = "https://arxiv.org/abs/2403.12030"
    needs = "adapters"
    keeps = "the adapter of each task, weights for each class under every adapter"
    grows = True

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.025
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64
    cross_weight: NonNegativeFloat = 0.1

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return t

    def __post_init__(self) -> None:
        super().__post_init__()
        device, width = self.trainer.device, self.trainer.network.width
        self.adapter = init_adapter(self.trainer, "scratch", self.adapter_rank)
        self.bank = AdapterBank(self.adapter.scale)
        self.task_of_C = torch.zeros(0, dtype=torch.long, device=device)
        self.true_CKD = torch.zeros(0, 0, width, device=device)  # zeros if there were no images
        self.weights_CE = torch.zeros(
            0, 0, device=device
        )  # computed from the two above; E is K * D

    def learn(self, task: Task) -> dict[str, Any]:
        self.adapter.set(init_adapter(self.trainer, task.index, self.adapter_rank).tensors())
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        fit_with_proxy(self.trainer, task, self.adapter, schedule)
        self.bank.append(self.adapter.tensors())

        feats_NKD, labels_N = self.trainer.features(task.train, self.bank)
        check_finite(feats_NKD, f"the features after task {task.number}")
        new_CE = prototypes(feats_NKD.flatten(1), labels_N, task.first, task.size)
        old_CKD = F.pad(self.true_CKD, (0, 0, 0, 1))  # unseen under the new adapter
        self.true_CKD = torch.cat([old_CKD, new_CE.unflatten(1, feats_NKD.shape[1:])])
        self.task_of_C = F.pad(self.task_of_C, (0, task.size), value=task.index)
        self._build_classifier()
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        feats_BKD = self.trainer.encode(images_B3SS, self.bank)
        return SCALE * F.linear(F.normalize(feats_BKD, dim=2).flatten(1), self.weights_CE)

    def _build_classifier(self) -> None:
        """Set the class weights: cosines in all subspaces and their weighted sum in one product."""
        full_CKD = synthesise(self.true_CKD, self.task_of_C)
        weights_CK = subspace_weights(self.task_of_C, len(self.bank), self.cross_weight)
        self.weights_CE = (F.normalize(full_CKD, dim=2) * weights_CK[:, :, None]).flatten(1)

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/bank", self.bank.stacked),
            "classifier/prototypes": self.true_CKD,
            "classifier/task_of": self.task_of_C,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.bank.stacked = unprefixed(state, "modules/bank")
        self.true_CKD = state["classifier/prototypes"]
        self.task_of_C = state["classifier/task_of"]
        self._build_classifier()


def synthesise(true_CKD: Tensor, task_of_C: Tensor) -> Tensor:
    """Return prototypes of every class in every subspace, from the measured ones.

    A class of task i was measured in the subspaces 1 .. i. In a later one j it becomes a weighted
    mean of the classes measured there, those of tasks j and later. The weights are the softmax of
    their cosines with it in its own subspace i, where they were measured too.
    """
    classes, subspaces, _ = true_CKD.shape
    units_CKD = F.normalize(true_CKD, dim=2)
    every_C = torch.arange(classes, device=true_CKD.device)
    own_CD = units_CKD[every_C, task_of_C]
    cosines_CKN = torch.einsum("cd,nkd->ckn", own_CD, units_CKD)
    cosines_CN = cosines_CKN[every_C, task_of_C]

    subspace_K = torch.arange(subspaces, device=true_CKD.device)
    measured_CK = subspace_K <= task_of_C[:, None]
    scores_CKN = cosines_CN[:, None].masked_fill(~measured_CK.T, -torch.inf)
    made_CKD = torch.einsum("ckn,nkd->ckd", scores_CKN.softmax(2), true_CKD)
    return torch.where(measured_CK[:, :, None], true_CKD, made_CKD)


def subspace_weights(task_of_C: Tensor, subspaces: int, cross_weight: float) -> Tensor:
    """Return [C, K]: 1 for a class's own subspace; the others share ``cross_weight`` equally."""
    own_CK = F.one_hot(task_of_C, subspaces).bool()
    return torch.where(own_CK, 1.0, cross_weight / max(1, subspaces - 1))

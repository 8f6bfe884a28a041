"""RanPAC: ridge regression on randomly projected features, exact over all tasks.

McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning",
arXiv 2307.02251. An adapter is trained on the first task only. Features then go through a fixed
random matrix and a ReLU to many more dimensions, where second moments summed over the
tasks give the very classifier that ridge regression on all images at once would give.

Logits are the plain linear map, as in the paper; a widely used port normalises the rows, which is
another classifier. The adapter is used for every data set; the authors' code has scale-and-shift
layers or prompts for some.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.ridge import choose_penalty, exact, rounding_floor, solve, statistics
from dafuse.methods.contract import Method
from dafuse.methods.options import check_ranges
from dafuse.methods.packing import packed, unpacked
from dafuse.methods.schedule import Schedule
from dafuse.methods.starts import start_adapter
from dafuse.methods.training import fit_with_proxy
from dafuse.seeds import torch_generator

FITTED = 0.8  # share of a task's images that penalties are tried on; the others judge them


@dataclass(kw_only=True, eq=False)
class RanPAC(Method):
    """Random projection and ridge regression on features adapted to the first task.

    Args:
        epochs: passes over the first task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: of SGD, on the adapter and the head it is trained with
        adapter_rank: width of the adapter's bottleneck
        projection: dimensions after the random projection; memory grows with its square
    """

    name = "ranpac"
    summary = "RanPAC: an adapter for the first task, ridge regression on random projections"
    paper = "https://arxiv.org/abs/2307.02251"
    keeps = (
        "the first task's adapter, the Gram matrix of projected features (400 MB by default), "
        "a moment and a row for each class; the projection is drawn again from the seed"
    )
    trains_once = True

    epochs: int = 20
    batch_size: int = 48
    lr: float = 0.01
    weight_decay: float = 5e-4
    adapter_rank: int = 64
    projection: int = 10000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, projection=(1, math.inf))
        device, wide = self.trainer.device, self.projection
        self.adapter = start_adapter(self.trainer, 0, self.adapter_rank)
        generator = torch_generator(self.trainer.seed, "projection")
        self.random_DM = torch.randn(self.trainer.vit.width, wide, generator=generator).to(device)
        self.gram_MM = torch.zeros(wide, wide, device=device)
        self.moments_CM = torch.zeros(0, wide, device=device)
        self.rows_CM = torch.zeros(0, wide, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        if task.number == 1:
            schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
            fit_with_proxy(self.trainer, task, self.adapter, schedule)
        feats_ND, labels_N = self.trainer.features(task.train, self.adapter)
        check_finite(feats_ND, f"the features after task {task.number}")
        targets_NC = F.one_hot(labels_N - task.first, task.size)
        with self.trainer.phase("ridge"):
            gram_MM, moments_CM = statistics(feats_ND, targets_NC, self._lift)
            self.gram_MM = (exact(self.gram_MM) + gram_MM).to(self.gram_MM)
            self.moments_CM = torch.cat([self.moments_CM, moments_CM.to(self.moments_CM)])
            chosen = self._penalty(task, feats_ND, targets_NC)
            penalty = max(chosen, rounding_floor(self.gram_MM))
            self.rows_CM = solve(self.gram_MM, self.moments_CM, penalty)
        check_finite(self.rows_CM, f"the classifier's rows after task {task.number}")
        return {"penalty_chosen": chosen, "penalty": penalty}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        feats_BD = self.trainer.encode(images_B3SS, self.adapter)
        return self._lift(feats_BD) @ self.rows_CM.T

    def _lift(self, feats_ND: Tensor) -> Tensor:
        return torch.relu(feats_ND @ self.random_DM)

    def _penalty(self, task: Task, feats_ND: Tensor, targets_NC: Tensor) -> float:
        """Chosen on this task alone: no feature of an earlier one is left to try it on.

        A single image cannot be split; then it is the mean eigenvalue of the Gram matrix.
        """
        generator = torch_generator(self.trainer.seed, "penalty", task.index)
        mixed_N = torch.randperm(len(feats_ND), generator=generator).to(feats_ND.device)
        fitted, held_out = mixed_N.split([cut := int(FITTED * len(mixed_N)), len(mixed_N) - cut])
        if not len(fitted):
            return float(self.gram_MM.diagonal().mean())
        return choose_penalty(
            feats_ND[fitted],
            targets_NC[fitted],
            feats_ND[held_out],
            targets_NC[held_out],
            lift=self._lift,
        )

    def state(self) -> dict[str, Tensor]:
        return {
            **packed("modules/adapter", self.adapter.tensors()),
            "statistics/gram": self.gram_MM,
            "statistics/moments": self.moments_CM,
            "classifier/rows": self.rows_CM,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.adapter.set(unpacked(state, "modules/adapter"))
        self.gram_MM = state["statistics/gram"]
        self.moments_CM = state["statistics/moments"]
        self.rows_CM = state["classifier/rows"]

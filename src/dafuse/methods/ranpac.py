"""RanPAC: ridge regression on randomly projected features, exact over all tasks.

McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning",
arXiv 2307.02251. An adapter is trained on the first task only. A fixed random matrix and a ReLU
then map features to many more dimensions. Their second moments, summed over tasks, give exactly the
ridge regression classifier of all images at once.

Logits are the plain linear map, as in the paper; a widely used port normalises the class weights,
which is another classifier. The adapter is used for every data set; the authors' code has
scale-and-shift layers or prompts for some.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.depths import Depths
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.ridge import choose_penalty, exact, left_out, rounding_floor, solve, statistics
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, PositiveInt
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter
from dafuse.seeds import torch_generator

FITTED = 0.8  # share of a task's images to fit each penalty on; the rest judge it


@dataclass(kw_only=True, eq=False)
class RanPAC(Method):
    """Random projection and ridge regression on features adapted to the first task.

    Args:
        epochs: training epochs over the first task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of the adapter's bottleneck
        projection: dimensions after the random projection; memory grows with its square
    """

    name = "ranpac"
    summary = "RanPAC: an adapter for the first task, ridge regression on random projections"
    paper = "https://arxiv.org/abs/2307.02251"
    needs = "adapters"
    keeps = (
        "the first task's adapter, the Gram matrix of projected features (400 MB by default), "
        "a moment and weights for each class; the projection is drawn again from the seed"
    )
    trains_once = True
    depths: ClassVar[Depths] = "last"

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64
    projection: PositiveInt = 10000

    def __post_init__(self) -> None:
        super().__post_init__()
        device, wide = self.trainer.device, self.projection
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)
        generator = torch_generator(self.trainer.seed, "projection")
        random_DM = torch.randn(self.trainer.network.width, wide, generator=generator)
        self.random_DM = random_DM.to(device)
        self.gram_MM = torch.zeros(wide, wide, device=device)
        self.moments_CM = torch.zeros(0, wide, device=device)
        self.weights_CM = torch.zeros(0, wide, device=device)
        self.tried = np.zeros(0, np.int64), np.zeros((0, 0))  # labels and scores, left out

    def learn(self, task: Task) -> dict[str, Any]:
        return self.teach(task, task.train)

    def teach(
        self, task: Task, images: ImageSet, tried: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Train in the first task, add images of known and new classes, and solve.

        Images at the indices `tried` are then scored as if they had not been taught.
        """
        if task.number == 1:
            schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
            fit_with_proxy(self.trainer, task, self.adapter, schedule)
        feats_ND, labels_N = self.trainer.features(images, self.adapter)
        check_finite(feats_ND, f"the features after task {task.number}")
        present_P, of_present_N = labels_N.unique(return_inverse=True)
        targets_NP = F.one_hot(of_present_N)
        with self.trainer.phase("ridge"):
            gram_MM, moments_PM = statistics(feats_ND, targets_NP, self.hidden)
            self.gram_MM = (exact(self.gram_MM) + gram_MM).to(self.gram_MM)
            new = max(0, task.seen - len(self.moments_CM))
            moments_CM = torch.cat([self.moments_CM, self.moments_CM.new_zeros(new, len(gram_MM))])
            moments_PM += exact(moments_CM[present_P])
            moments_CM[present_P] = moments_PM.to(moments_CM)
            self.moments_CM = moments_CM
            chosen = self._penalty(task, feats_ND, targets_NP)
            penalty = max(chosen, rounding_floor(self.gram_MM))
            self.weights_CM = solve(self.gram_MM, self.moments_CM, penalty)
            if tried is not None and len(tried):
                sums = self.gram_MM, self.moments_CM, penalty
                scores_NC = left_out(*sums, self.hidden(feats_ND[tried]), labels_N[tried])
                self.tried = labels_N[tried].cpu().numpy(), scores_NC.cpu().numpy()
        check_finite(self.weights_CM, f"the class weights after task {task.number}")
        return {"penalty_chosen": chosen, "penalty": penalty}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        feats_BD = self.trainer.encode(images_B3SS, self.adapter)
        return self.hidden(feats_BD) @ self.weights_CM.T

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only; in ridge regression the weights of classes are independent."""
        kept = list(remaining)
        self.moments_CM, self.weights_CM = self.moments_CM[kept], self.weights_CM[kept]

    @property
    def attached(self) -> Adapter:
        return self.adapter

    def hidden(self, feats_ND: Tensor) -> Tensor:
        return torch.relu(feats_ND @ self.random_DM)

    def _penalty(self, task: Task, feats_ND: Tensor, targets_NP: Tensor) -> float:
        """Choose a penalty on this task alone: no features of earlier ones are left to try it on.

        A single image cannot be split; then the penalty is the mean eigenvalue of the Gram matrix.
        """
        generator = torch_generator(self.trainer.seed, "penalty", task.index)
        mixed_N = torch.randperm(len(feats_ND), generator=generator).to(feats_ND.device)
        fitted, held_out = mixed_N.split([cut := int(FITTED * len(mixed_N)), len(mixed_N) - cut])
        if not len(fitted):
            return float(self.gram_MM.diagonal().mean())
        return choose_penalty(
            feats_ND[fitted],
            targets_NP[fitted],
            feats_ND[held_out],
            targets_NP[held_out],
            lift=self.hidden,
        )

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/adapter", self.adapter.tensors()),
            "statistics/gram": self.gram_MM,
            "statistics/moments": self.moments_CM,
            "classifier/rows": self.weights_CM,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.load_network(state)
        self.gram_MM = state["statistics/gram"]
        self.moments_CM = state["statistics/moments"]
        self.weights_CM = state["classifier/rows"]

    def load_network(self, state: dict[str, Tensor]) -> None:
        """Load only what hidden features depend on."""
        self.adapter.set(unprefixed(state, "modules/adapter"))

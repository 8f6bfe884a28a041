"""SSIAT: one adapter trained on through all tasks, and old class means that move along with it.

Tan et al., "Semantically-Shifted Incremental Adapter-Tuning is A Continual ViTransformer",
arXiv 2403.19979. Nothing holds the adapter back, so old features drift. The movement of the new
task's images, weighted by their nearness to an old class mean, estimates how that mean moved. The
classifier is then aligned with the Gaussians of all classes.

Here each image before training is paired with itself after, under the test transform; the public
code compares differently augmented images in different orders.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.stream import Task
from dafuse.heads.alignment import shrink_with_age
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosface, cosine_logits
from dafuse.heads.gaussians import ClassMemory
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, PositiveInt, Share
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import aligned, init_adapter, init_class_weights

NEARNESS = 4.0  # std of the Gaussian that weighs images by their distance to a mean
FLOOR = 1e-5  # min weight of an image before normalisation
CHUNK = 128  # class means moved at a time
JITTER = 1e-3  # added to every variance of a class


def drifted(means_CD: Tensor, before_ND: Tensor, after_ND: Tensor) -> Tensor:
    """Return old class means, moved like the images near them; row i of both is the same image."""
    moved_ND = after_ND - before_ND
    moved_means = []
    for means_cD in means_CD.split(CHUNK):
        # the shortcut by inner products loses digits that the exponential needs
        far_cN = torch.cdist(means_cD, before_ND, compute_mode="donot_use_mm_for_euclid_dist")
        weights_cN = torch.exp(-far_cN.square() / (2 * NEARNESS**2)) + FLOOR
        weights_cN = weights_cN / weights_cN.sum(1, keepdim=True)
        moved_means.append(means_cD + weights_cN @ moved_ND)
    return torch.cat(moved_means)


@dataclass(kw_only=True, eq=False)
class SSIAT(Method):
    """One shared adapter without constraint; drifting class means, aligned classifier.

    Args:
        first_epochs: training epochs over the first task's images
        epochs: training epochs over each later task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start of each task; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and the new class weights
        adapter_rank: width of the adapter's bottleneck
        margin: margin by which the cosine of the true class must be the largest in training
        memory: the form in which a class's covariance is kept
        align_epochs: epochs of classifier alignment; 0 turns it off
        align_samples: features drawn for each class in each epoch
        align_lr: learning rate of the alignment
    """

    name = "ssiat"
    summary = "SSIAT: one adapter trained through all tasks, class means corrected for its drift"
    paper = "https://arxiv.org/abs/2403.19979"
    needs = "adapters"
    keeps = "the adapter, a Gaussian and weights for each class"

    first_epochs: PositiveInt = 20
    epochs: PositiveInt = 10
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64
    margin: Share = 0.0
    memory: Literal["full", "diagonal"] = "full"
    align_epochs: NonNegativeInt = 5
    align_samples: PositiveInt = 256
    align_lr: NonNegativeFloat = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)
        self.weights_CD = torch.zeros(0, network.width, device=device)
        self.classes = ClassMemory(network.width, self.memory, jitter=JITTER)
        self.task_of_C = torch.zeros(0, dtype=torch.int64, device=device)  # task of each class

    def learn(self, task: Task) -> dict[str, Any]:
        old = task.number > 1
        before_ND = self.trainer.features(task.train, self.adapter)[0] if old else None
        trained_CD = self._train(task)
        after_ND, labels_N = self.trainer.features(task.train, self.adapter)
        check_finite(after_ND, f"the features after task {task.number}")

        diagnosis = {} if before_ND is None else self._drift(before_ND, after_ND)
        self.classes.add(after_ND, labels_N, task.first, task.size)
        self.task_of_C = F.pad(self.task_of_C, (0, task.size), value=task.index)
        self.weights_CD = torch.cat([self.weights_CD, trained_CD])
        if old and self.align_epochs:
            sampler = self.classes.sampler(self.trainer.device)
            sampler = sampler.scaled(shrink_with_age(self.task_of_C))
            settings = self.align_epochs, self.align_samples, self.align_lr
            self.weights_CD = aligned(self.trainer, task, self.weights_CD, sampler, *settings)
        return diagnosis

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return cosine_logits(self.trainer.encode(images_B3SS, self.adapter), self.weights_CD)

    def _train(self, task: Task) -> Tensor:
        """Train the adapter and new class weights on the new classes; return the weights."""
        weights = nn.Parameter(init_class_weights(self.trainer, task.index, task.size))

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, self.adapter)
            return cosface(feats_BD, weights, labels_B - task.first, self.margin)

        epochs = self.first_epochs if task.number == 1 else self.epochs
        schedule = Schedule(epochs, self.batch_size, self.lr, self.weight_decay)
        trained = Group([*self.adapter.parameters(), weights])
        self.trainer.fit(task, self.adapter, loss, [trained], schedule)
        return weights.detach()

    def _drift(self, before_ND: Tensor, after_ND: Tensor) -> dict[str, Any]:
        """Move the old means; return how far they and the images moved, on average."""
        means_CD = self.classes.tensors["mean"].to(before_ND.device)
        moved_CD = drifted(means_CD, before_ND, after_ND)
        self.classes.tensors["mean"] = moved_CD
        return {
            "drift_of_means": float((moved_CD - means_CD).norm(dim=1).mean()),
            "drift_of_images": float((after_ND - before_ND).norm(dim=1).mean()),
        }

    def state(self) -> dict[str, Tensor]:
        return {
            **prefixed("modules/adapter", self.adapter.tensors()),
            **prefixed("statistics/class", self.classes.tensors),
            "statistics/task_of": self.task_of_C,
            "classifier/rows": self.weights_CD,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.adapter.set(unprefixed(state, "modules/adapter"))
        self.classes.tensors = unprefixed(state, "statistics/class")
        self.task_of_C = state["statistics/task_of"]
        self.weights_CD = state["classifier/rows"]

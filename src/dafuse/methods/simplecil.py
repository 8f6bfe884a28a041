"""SimpleCIL: no training; the mean feature of each class is its prototype.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", arXiv 2303.07338.
It is deterministic up to numerics, so it checks weights, transforms, class order and metric.

For each class it keeps the sum of the features, which has the direction of their mean. So images
may come in any batches and any order, from known and new classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dafuse.data.stream import Task
from dafuse.heads.cosine import class_sums, cosine_logits, exact_dtype
from dafuse.methods.contract import Method


@dataclass(kw_only=True, eq=False)
class SimpleCIL(Method):
    """Class means as prototypes."""

    name = "simplecil"
    summary = "frozen network, class means as prototypes, no training"
    paper = "https://arxiv.org/abs/2303.07338"
    keeps = "weights for each class"
    observes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights_CD = self._exact(torch.zeros(0, self.trainer.network.width))

    def learn(self, task: Task) -> dict[str, Any]:
        feats_ND, labels_N = self.trainer.features(task.train, attached=None)
        self._add(feats_ND, labels_N)
        return {}

    @torch.no_grad()
    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        self._add(self.trainer.encode(images_B3SS, attached=None), labels_B)

    def logits(self, images_B3SS: Tensor) -> Tensor:
        feats_BD = self.trainer.encode(images_B3SS, attached=None)
        return cosine_logits(feats_BD, self.weights_CD.to(feats_BD.dtype))

    def state(self) -> dict[str, Tensor]:
        return {"classifier/rows": self.weights_CD}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.weights_CD = self._exact(state["classifier/rows"])

    def _add(self, feats_ND: Tensor, labels_N: Tensor) -> None:
        known = len(self.weights_CD)
        sums_CD = class_sums(feats_ND, labels_N, max(known, int(labels_N.max()) + 1))
        sums_CD[:known] += self.weights_CD
        self.weights_CD = sums_CD

    def _exact(self, weights_CD: Tensor) -> Tensor:
        device = self.trainer.device
        return weights_CD.to(device, exact_dtype(device))

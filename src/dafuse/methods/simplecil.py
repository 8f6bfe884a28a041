"""SimpleCIL: no training at all, the mean feature of each class is its prototype.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", arXiv 2303.07338.
Deterministic up to numerics, so it proves weights, transforms, class order and metric.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dafuse.data.stream import Task
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.methods.contract import Method


@dataclass(kw_only=True, eq=False)
class SimpleCIL(Method):
    """Class means as prototypes."""

    name = "simplecil"
    summary = "frozen network, class means as prototypes, no training"
    paper = "https://arxiv.org/abs/2303.07338"
    keeps = "a row for each class"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows_CD = torch.zeros(0, self.trainer.vit.width, device=self.trainer.device)

    def learn(self, task: Task) -> dict[str, Any]:
        feats_ND, labels_N = self.trainer.features(task.train, attached=None)
        new_CD = prototypes(feats_ND, labels_N, task.first, task.size)
        self.rows_CD = torch.cat([self.rows_CD, new_CD])
        return {}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return cosine_logits(self.trainer.encode(images_B3SS, attached=None), self.rows_CD)

    def state(self) -> dict[str, Tensor]:
        return {"classifier/rows": self.rows_CD}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.rows_CD = state["classifier/rows"]

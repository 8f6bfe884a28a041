"""Training steps that several methods share, one call each."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.data.stream import Task
from dafuse.heads.alignment import Gradient, align, cosine_gradient
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosine_logits, uniform_rows
from dafuse.heads.gaussians import Sampler
from dafuse.methods.contract import Engine
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.starts import start_rows
from dafuse.seeds import derive


def fit_with_proxy(trainer: Engine, task: Task, adapter: Adapter, schedule: Schedule) -> None:
    """Train an adapter under a temporary cosine head over the task's classes, with learned scale.

    APER, RanPAC and EASE train their adapters so.
    """
    weights = nn.Parameter(start_rows(trainer, task.index, task.size, maker=uniform_rows))
    scale = nn.Parameter(torch.ones((), device=trainer.device))

    def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        logits = cosine_logits(trainer.encode(images_B3SS, adapter), weights, scale)
        return F.cross_entropy(logits, labels_B - task.first)

    trainer.fit(task, adapter, loss, [Group([*adapter.parameters(), weights, scale])], schedule)


def aligned(
    trainer: Engine,
    task: Task,
    weights_CD: Tensor,
    sampler: Sampler,
    epochs: int,
    samples: int,
    lr: float,
    weight_decay: float = 5e-4,
    gradient: Gradient = cosine_gradient,
    period: int | None = None,
) -> Tensor:
    """Return the class weights after alignment with all class Gaussians; timed and shown."""
    seed = derive(trainer.seed, "alignment", task.index)
    generator = torch.Generator(trainer.device).manual_seed(seed)
    with trainer.phase("align", steps=epochs) as bar:
        weights_CD = align(
            weights_CD,
            sampler,
            generator,
            epochs,
            samples,
            lr,
            weight_decay=weight_decay,
            gradient=gradient,
            period=period,
            bar=bar,
            faster=lambda step: trainer.graphed(step, "a step of alignment"),
        )
    check_finite(weights_CD, f"the class weights aligned in task {task.number}")
    return weights_CD

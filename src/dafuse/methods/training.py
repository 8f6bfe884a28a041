"""The training that methods share: init, an adapter under a temporary head, alignment."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, adapter_beside
from dafuse.data.stream import Task
from dafuse.heads.alignment import Gradient, align, cosine_gradient
from dafuse.heads.arrays import check_finite
from dafuse.heads.cosine import cosine_logits, normal_init, uniform_init
from dafuse.heads.gaussians import Sampler
from dafuse.methods.contract import Engine
from dafuse.methods.schedule import Group, Schedule
from dafuse.seeds import derive, torch_generator

ClassWeightsInit = Callable[[int, int, torch.Generator], Tensor]  # classes, width, generator


def init_adapter(
    trainer: Engine, purpose: str | int, rank: int, scale: float = 0.1, dropout: float = 0.1
) -> Adapter:
    """Return a new adapter on the trainer's device, without dropout until training.

    The same purpose gives the same adapter again.
    """
    generator = torch_generator(trainer.seed, "adapter", purpose)
    adapter = adapter_beside(trainer.network.stages, rank, scale, dropout, generator)
    return adapter.to(trainer.device).eval()


def init_class_weights(
    trainer: Engine,
    purpose: str | int,
    classes: int,
    width: int | None = None,  # default: the features' width
    init: ClassWeightsInit = normal_init,
) -> Tensor:
    """Return new class weights on the trainer's device."""
    generator = torch_generator(trainer.seed, "head", purpose)
    return init(classes, width or trainer.network.width, generator).to(trainer.device)


def fit_with_proxy(trainer: Engine, task: Task, adapter: Adapter, schedule: Schedule) -> None:
    """Train an adapter under a temporary cosine head over the task's classes, with learned scale.

    APER, RanPAC and EASE train their adapters so.
    """
    weights = nn.Parameter(init_class_weights(trainer, task.index, task.size, init=uniform_init))
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

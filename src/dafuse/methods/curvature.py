"""The gradient and the Fisher diagonal of the loss at a trained task adapter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, AdapterForEach, Tensors
from dafuse.backbones.attach import Attachment
from dafuse.data.stream import Task
from dafuse.fusion.gradients import Curvature, gradient_and_fisher
from dafuse.heads.cosine import cosine_logits
from dafuse.methods.contract import Engine, prefixed, unprefixed
from dafuse.seeds import numpy_generator


def losses_under(
    trainer: Engine, task: Task, attached: Attachment, head: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function for the training loss of each image, under the head it was trained with."""

    def losses(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        logits = cosine_logits(trainer.encode(images_B3SS, attached), head)
        return F.cross_entropy(logits, labels_B - task.first, reduction="none")

    return losses


def curvature_at(
    trainer: Engine, task: Task, adapter: Adapter, head: Tensor, per_batch: int | None = None
) -> Curvature:
    """Measure in one pass over the task's images: no dropout, test transform.

    The squared gradients are those of single samples, or mean ones of batches of ``per_batch``.
    """
    copies = AdapterForEach(adapter)
    losses_of = losses_under(trainer, task, copies, head)

    def losses(images_B3SS: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensors]:
        return losses_of(images_B3SS, labels_B), copies.own

    images = task.train
    if per_batch is not None:  # shuffled batches of the same size, as in training
        shuffle = numpy_generator(trainer.seed, "fisher", task.index)
        images = images.take(shuffle.permutation(len(images)))
    with trainer.phase("fisher", len(images), steps=len(images)) as bar:
        batches = trainer.dealt(images, bar, per_batch, gradients=True)
        return gradient_and_fisher(losses, batches, per_batch is None, trainer.summed)


def packed_curvature(curvature: Curvature) -> Tensors:
    """Return the curvature as tensors that a record can keep."""
    loss = torch.tensor(curvature.loss, dtype=torch.float64)
    gradient, fisher = (
        prefixed("gradient", curvature.gradient),
        prefixed("fisher", curvature.fisher),
    )
    return {**gradient, **fisher, "loss": loss}


def unpacked_curvature(tensors: Tensors) -> Curvature:
    """Return the curvature that `packed_curvature` made these tensors of."""
    gradient, fisher = unprefixed(tensors, "gradient"), unprefixed(tensors, "fisher")
    return Curvature(gradient, fisher, float(tensors["loss"]))

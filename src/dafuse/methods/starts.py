"""Random initial adapters and class weights, each drawn by a generator of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from dafuse.backbones.adapter import Adapter, adapter_beside
from dafuse.heads.cosine import new_rows
from dafuse.methods.contract import Engine
from dafuse.seeds import torch_generator

RowsMaker = Callable[[int, int, torch.Generator], Tensor]  # classes, width, generator


def start_adapter(
    trainer: Engine, purpose: str | int, rank: int, scale: float = 0.1, dropout: float = 0.1
) -> Adapter:
    """Return a new adapter on the trainer's device, without dropout until training.

    The same purpose gives the same adapter again.
    """
    generator = torch_generator(trainer.seed, "adapter", purpose)
    adapter = adapter_beside(trainer.network.stages, rank, scale, dropout, generator)
    return adapter.to(trainer.device).eval()


def start_rows(
    trainer: Engine,
    purpose: str | int,
    classes: int,
    width: int | None = None,  # default: the features' width
    maker: RowsMaker = new_rows,
) -> Tensor:
    """Return initial class weights on the trainer's device."""
    generator = torch_generator(trainer.seed, "head", purpose)
    return maker(classes, width or trainer.network.width, generator).to(trainer.device)

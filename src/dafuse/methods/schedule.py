"""A training schedule: optimiser, epochs, batches, and the learning rate over time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import nn

Decay = Callable[[int, int], float]  # epoch from 0, number of epochs -> factor of the learning rate


def cosine(epoch: int, epochs: int) -> float:
    """Fall from 1 towards 0."""
    return (1 + math.cos(math.pi * epoch / epochs)) / 2


def constant(epoch: int, epochs: int) -> float:
    return 1.0


def tenth_at(share: float) -> Decay:
    """Return 1, then a tenth after this share of the epochs if that leaves a whole epoch."""
    return lambda epoch, epochs: 1.0 if epoch < share * epochs else 0.1


@dataclass(frozen=True)
class Schedule:
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.9  # momentum of SGD
    optimiser: Literal["sgd", "adam"] = "sgd"
    decay: Decay = cosine


class Group(NamedTuple):
    """Parameters that are trained together, at this factor of the schedule's learning rate."""

    parameters: Iterable[nn.Parameter]
    rate: float = 1.0

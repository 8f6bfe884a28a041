"""What `lift` is made of, for a benchmark run and for lessons alike. No torch here."""

from typing import Literal, Protocol

import numpy as np

from dafuse.backbones.depths import Depths, parts_of
from dafuse.heads.arrays import Array
from dafuse.heads.closed_form import KINDS, Kind
from dafuse.heads.lifting import Lift, depth_weights
from dafuse.seeds import derive

Head = Literal["ridge", "lda", "auto"]
MOST_COLUMNS = 100_000  # random ones, whose scatter takes 40 GB


class Blocks(Protocol):
    """A network of so many blocks, whose tokens have so many numbers."""

    depth: int
    width: int


def lift_of(network: Blocks, features: Depths, width: int, seed: int, like: Array) -> Lift:
    """The map from what is read of a network to what the sums are of."""
    parts = parts_of(features, network.depth)
    weights_F = depth_weights([part.block for part in parts], network.depth, network.width)
    tokens_F = np.repeat([part.what == "cls" for part in parts], network.width)
    return Lift(weights_F, width, derive(seed, "lift"), like, tokens_F)


def kinds_of(head: Head) -> tuple[Kind, ...]:
    """The kinds of heads that are tried."""
    return KINDS if head == "auto" else (head,)

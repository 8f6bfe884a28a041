"""The parts of `lift` that benchmark runs and lessons share. No torch here."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from dafuse.backbones.backbone import Backbone
from dafuse.backbones.depths import WHOLE, Depths
from dafuse.heads.arrays import Array
from dafuse.heads.closed_form import KINDS, Kind
from dafuse.heads.lifting import Lift, depth_weights
from dafuse.seeds import derive

if TYPE_CHECKING:
    from dafuse.backbones.network import Network

HeadName = Literal["ridge", "lda", "auto"]
MOST_COLUMNS = 100_000  # max random columns; their scatter takes 40 GB


def lift_of(
    network: "Backbone | Network", features: Depths, width: int, seed: int, like: Array
) -> Lift:
    """Return the map from a network's features to the hidden features that are summed."""
    parts = network.parts(features)
    widths = [part.width for part in parts]
    weights_F = depth_weights([part.level for part in parts], widths, network.depth)
    tokens_F = np.repeat([part.what in WHOLE for part in parts], widths)
    return Lift(weights_F, width, derive(seed, "lift"), like, tokens_F)


def kinds_of(head: HeadName) -> tuple[Kind, ...]:
    """Return the kinds of heads to try."""
    return KINDS if head == "auto" else (head,)

"""The protocol of a frozen network, and the needs that a method may have. No torch here."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from dafuse.backbones.depths import Depths, FeaturePart
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from onnx import ModelProto

Need = Literal["features", "adapters", "prompts", "whole network", "last block"]


class Backbone(Protocol):
    """A frozen network: an exported file (`extractor`), or torch's (`taught.torch_extractor`)."""

    tag: str  # exact: it names one set of weights
    sha256: str  # of the weights file
    preprocessing: Preprocessing

    @property
    def offers(self) -> Collection[Need]:
        """The needs of methods that it meets."""

    @property
    def width(self) -> int:
        """The number of columns of the last level's features."""

    @property
    def depth(self) -> int:
        """The number of levels (`depths`)."""

    @property
    def stages(self) -> list[tuple[int, int]]:
        """The number of blocks with a place for an adapter, and their width, for each stage."""

    def parts(self, depths: Depths) -> list[FeaturePart]:
        """Return the parts that make up the features of these depths, in order."""

    def width_at(self, depths: Depths) -> int:
        """Return the number of columns of the features of these depths."""

    def encode(self, squares_B3SS: np.ndarray, depths: Depths = "moments") -> np.ndarray:
        """Return features [B, F] of what `preprocessing.centre_square` cuts: float32 0 to 255."""

    def graph(self, depths: Depths) -> "ModelProto":
        """Return the network as one ONNX graph with all its weights; its output is ``features``."""


# each need in words, and which networks meet it; the first one named is in the package
WORDS: dict[Need, tuple[str, str]] = {
    "features": ("features", "any network of timm"),
    "adapters": (
        "places for adapters",
        "plain ViTs, ConvNeXt and Swin have them, such as --backbone embedded, small, "
        "convnext_tiny.in12k_ft_in1k or swin_tiny_patch4_window7_224.ms_in1k",
    ),
    "prompts": (
        "places for prompts",
        "plain ViTs have them, such as --backbone embedded, small or base",
    ),
    "whole network": (
        "a network whose weights can be trained",
        "any tag of timm has that, such as --backbone embedded or resnet50.a1_in1k",
    ),
    "last block": (
        "a last block that can be split off",
        "plain ViTs have one, such as --backbone embedded, small or base",
    ),
}


def in_words(method: str, options: Mapping[str, Any]) -> str:
    """Return the method's name, with its option ``tune`` if it trains the network."""
    tune = options.get("tune", "none")
    return method if tune == "none" else f"{method} with tune={tune}"


def require_offered(method: str, need: Need, tag: str, offers: Collection[Need]) -> None:
    """Refuse a method and a network that cannot work together, and name networks that can."""
    if need not in offers:
        what, others = WORDS[need]
        raise DafuseError(
            f"{method} needs {what}, which the backbone {tag} does not have: {others}"
        )

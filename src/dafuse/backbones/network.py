"""What every network of torch has in common: features of images, and what else it offers.

`vit.ViT` and `staged.Staged` have places where modules attach; all others are an
`any_timm.AnyTimm`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.attach import Attachment
from dafuse.backbones.backbone import Need
from dafuse.backbones.depths import Depths, Level, Part, parts_of, width_of
from dafuse.data.preprocessing import Preprocessing


class Network(nn.Module, ABC):
    """Features of images under whatever is attached. Frozen, but for a copy made to be trained."""

    offers: ClassVar[frozenset[Need]]
    levels: list[Level]
    stages: list[tuple[int, int]]  # blocks beside which adapters stand, and their width; or none
    values_kept: int  # numbers that a forward pass holds of one image, one for each block's output

    def __init__(self, timm_model: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__()
        self.timm: Any = timm_model
        self.preprocessing = preprocessing
        self.tag = tag
        self.sha256 = self.source = ""  # of the weights it was loaded from, and where they lay
        self.requires_grad_(False)
        self.eval()

    @property
    def depth(self) -> int:
        """How many levels there are."""
        return len(self.levels)

    @property
    def width(self) -> int:
        """How many numbers the features of the last level have."""
        return self.levels[-1].whole_width

    @property
    def squared_length(self) -> float:
        """Approximate squared length of these features."""
        return float(self.width)

    def parts(self, depths: Depths) -> list[Part]:
        """What the features of these depths are made of, in order."""
        return parts_of(depths, self.levels)

    def width_at(self, depths: Depths) -> int:
        """How many numbers the features of these depths have."""
        return width_of(self.parts(depths))

    @abstractmethod
    def forward(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        depths: Depths = "last",
    ) -> Tensor:
        """Features [B, F] of normalised images; or what the attachment reads out."""

    @abstractmethod
    def at_depths(
        self, images_B3HW: Tensor, attached: Attachment | None, kinds: Sequence[Depths]
    ) -> dict[str, Tensor]:
        """Features [B, F] of each of these kinds of depths, as float32, by one pass."""

    def read(
        self, kinds: Sequence[Depths], level: Callable[[int], tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """The same, of what `level` gives of each: what stands for the image, and the tokens."""
        parts = {kind: self.parts(kind) for kind in kinds}
        wanted = sorted({part.level for of_kind in parts.values() for part in of_kind})
        of_level = {number: level(number) for number in wanted}
        return {
            kind: torch.cat([_values(part, *of_level[part.level]) for part in of_kind], dim=1)
            for kind, of_kind in parts.items()
        }

    def train(self, mode: bool = True) -> Self:
        """Always in evaluation mode: what is learned of images is in weights, not in statistics."""
        return super().train(False)

    def trainable_copy(self) -> Self:
        """A copy of its own whose every weight may be trained."""
        return deepcopy(self).requires_grad_(True)

    def cast_once(self, dtype: torch.dtype) -> Self:
        """A copy that holds its products' weights as autocast would cast them in every pass."""
        copy = deepcopy(self)
        for module in copy.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.to(dtype)
        return copy


def _values(part: Part, whole_BD: Tensor, tokens_BND: Tensor) -> Tensor:
    """A part [B, D] of a level."""
    if part.what == "mean":
        return tokens_BND.mean(1)
    if part.what == "std":
        return torch.std(tokens_BND, dim=1, correction=0)
    return whole_BD


def unit_scale(x: Tensor) -> Tensor:
    """A LayerNorm without weights, in float32: all levels come on one scale."""
    return F.layer_norm(x.float(), x.shape[-1:])

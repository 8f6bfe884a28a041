"""The base class of torch networks: features of images, and what else a network offers.

`vit.ViT` and `staged.Staged` have places where modules attach; all others are
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
from dafuse.backbones.depths import Depths, FeaturePart, Level, parts_of, width_of
from dafuse.data.preprocessing import Preprocessing


class Network(nn.Module, ABC):
    """Features of images with an attachment. Frozen, except a copy made for training."""

    offers: ClassVar[frozenset[Need]]
    levels: list[Level]
    stages: list[tuple[int, int]]  # per stage: blocks that take an adapter, their width
    values_kept: int  # numbers that a forward pass holds for one image, one for each block's output

    def __init__(self, timm_model: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__()
        self.timm: Any = timm_model
        self.preprocessing = preprocessing
        self.tag = tag
        self.sha256 = self.source = ""  # of the weights, and where they were found
        self.requires_grad_(False)
        self.eval()

    @property
    def depth(self) -> int:
        """The number of levels."""
        return len(self.levels)

    @property
    def width(self) -> int:
        """The number of columns of the last level's features."""
        return self.levels[-1].whole_width

    @property
    def squared_length(self) -> float:
        """The approximate squared length of these features."""
        return float(self.width)

    def parts(self, depths: Depths) -> list[FeaturePart]:
        """Return the parts that make up the features of these depths, in order."""
        return parts_of(depths, self.levels)

    def width_at(self, depths: Depths) -> int:
        """Return the number of columns of the features of these depths."""
        return width_of(self.parts(depths))

    @abstractmethod
    def forward(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, F] of normalised images, or what the attachment reads out.

        An attachment for prompts needs those of each image.
        """

    @abstractmethod
    def at_depths(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None,
        kinds: Sequence[Depths],
        prompts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return float32 features [B, F] for each of these kinds of depths, from one pass."""

    def read(
        self, kinds: Sequence[Depths], level: Callable[[int], tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """Assemble the features from `level`, which gives a level's image vector and tokens."""
        parts = {kind: self.parts(kind) for kind in kinds}
        wanted = sorted({part.level for of_kind in parts.values() for part in of_kind})
        of_level = {number: level(number) for number in wanted}
        return {
            kind: torch.cat([_values(part, *of_level[part.level]) for part in of_kind], dim=1)
            for kind, of_kind in parts.items()
        }

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: training changes weights, never statistics."""
        return super().train(False)

    def trainable_copy(self) -> Self:
        """Return a separate copy whose every weight may be trained."""
        return deepcopy(self).requires_grad_(True)

    def cast_once(self, dtype: torch.dtype) -> Self:
        """Return a copy whose product weights have the precision to which autocast casts them."""
        copy = deepcopy(self)
        for module in copy.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.to(dtype)
        return copy


def _values(part: FeaturePart, whole_BD: Tensor, tokens_BND: Tensor) -> Tensor:
    """Return a part [B, D] of a level."""
    if part.what == "mean":
        return tokens_BND.mean(1)
    if part.what == "std":
        return torch.std(tokens_BND, dim=1, correction=0)
    return whole_BD


def unit_scale(x: Tensor) -> Tensor:
    """Apply a LayerNorm without weights, in float32, so that all levels have one scale."""
    return F.layer_norm(x.float(), x.shape[-1:])

"""Any timm network that gives the features of its blocks or stages: frozen, without attachments."""

from collections.abc import Sequence
from inspect import signature
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from dafuse.backbones.attach import Attachment
from dafuse.backbones.backbone import Need
from dafuse.backbones.depths import Depths, Level
from dafuse.backbones.network import Network, unit_scale
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError


class NetworkOutput(NamedTuple):
    """The levels and the output of a network for a batch."""

    levels: list[tuple[Tensor, Tensor | None]]  # positions [B, N, D], class token [B, D]
    pooled_BD: Tensor  # the input of the network's own classifier


class AnyTimm(Network):
    """Features by `forward_intermediates`, timm's one interface to all its families.

    The last level's feature is the input of the network's own classifier. Inner levels have a class
    token if the network has one, else the mean of all positions. All are brought to one scale.
    """

    offers: ClassVar[frozenset[Need]] = frozenset({"features", "whole network"})

    def __init__(self, timm_model: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__(timm_model, preprocessing, tag)
        model = self.timm
        if not hasattr(model, "forward_intermediates"):
            kind = type(model).__name__
            raise DafuseError(
                f"the backbone {tag} is a {kind}, and timm does not give the features of its "
                "stages: choose another"
            )
        options = signature(model.forward_intermediates).parameters
        prefixes = getattr(model, "num_prefix_tokens", 0)  # without any, some networks return none
        self._has_prefix = "return_prefix_tokens" in options and prefixes > 0
        self._has_cls = self._has_prefix and getattr(model, "cls_token", None) is not None
        channels = [stage["num_chs"] for stage in model.feature_info]
        pooled = getattr(model, "head_hidden_size", None) or model.num_features
        self.levels = [
            *(Level("cls" if self._has_cls else "mean", width, width) for width in channels[:-1]),
            Level("pooled", pooled, channels[-1]),
        ]
        self.stages = []
        sides = [preprocessing.size // stage["reduction"] for stage in model.feature_info]
        self.values_kept = sum(s * s * width for s, width in zip(sides, channels, strict=True))

    def forward(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        if depths == "last":
            pooled_BD = unit_scale(self.walk(images_B3HW, attached, prompts).pooled_BD)
            return pooled_BD if attached is None else attached.readout(pooled_BD[:, None], prompts)
        return self.at_depths(images_B3HW, attached, [depths], prompts)[depths]

    def at_depths(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None,
        kinds: Sequence[Depths],
        prompts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        seen = self.walk(images_B3HW, attached, prompts)

        def level(number: int) -> tuple[Tensor, Tensor]:
            positions_BND, cls_BD = seen.levels[number]
            tokens_BND = unit_scale(positions_BND)
            if number == self.depth - 1:
                return unit_scale(seen.pooled_BD), tokens_BND
            return (tokens_BND.mean(1) if cls_BD is None else unit_scale(cls_BD)), tokens_BND

        return self.read(kinds, level)

    def walk(
        self, images_B3HW: Tensor, attached: Attachment | None, prompts: Tensor | None = None
    ) -> NetworkOutput:
        """Return all levels, and the network's output."""
        if attached is not None:
            raise TypeError(f"nothing can be attached to {self.tag}")
        more = {"return_prefix_tokens": True} if self._has_prefix else {}
        last, outputs = self.timm.forward_intermediates(images_B3HW, **more)
        levels = [(positions_of(grid), cls) for grid, cls in map(self._grid_and_cls, outputs)]
        return NetworkOutput(levels, self.pool(last))

    def pool(self, last: Tensor) -> Tensor:
        """Return the input of the network's own classifier, given the last level."""
        pooled_BD: Tensor = self.timm.forward_head(last, pre_logits=True)
        return pooled_BD

    def _grid_and_cls(self, found: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        if isinstance(found, Tensor):
            return found, None
        grid_BDHW, prefix_BPD = found
        return grid_BDHW, prefix_BPD[:, 0] if self._has_cls else None


def positions_of(grid_BDHW: Tensor) -> Tensor:
    """Return a grid's vectors as a sequence [B, N, D]."""
    return grid_BDHW.flatten(2).transpose(1, 2)

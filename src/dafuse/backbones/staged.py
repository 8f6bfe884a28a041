"""ConvNeXt and Swin: stages of different widths, with an adapter beside each block's MLP.

An adapter reads the block's residual sum before the MLP: in a Swin block after attention, in a
ConvNeXt block, which has only one residual sum, at its start.
"""

from typing import Any, ClassVar

from timm.models.convnext import ConvNeXt, ConvNeXtBlock
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from torch import Tensor, nn

from dafuse.backbones.any_timm import AnyTimm, NetworkOutput, positions_of
from dafuse.backbones.attach import Attachment
from dafuse.backbones.backbone import Need
from dafuse.data.preprocessing import Preprocessing


class Staged(AnyTimm):
    """A walk over timm's layers that calls the attachment beside each MLP."""

    offers: ClassVar[frozenset[Need]] = frozenset({"features", "adapters", "whole network"})

    def __init__(self, timm_model: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__(timm_model, preprocessing, tag)
        self._is_convnext = isinstance(timm_model, ConvNeXt)
        stages = self.timm.stages if self._is_convnext else self.timm.layers
        widths = [stage["num_chs"] for stage in self.timm.feature_info]
        blocks = [len(stage.blocks) for stage in stages]
        self.stages = list(zip(blocks, widths, strict=True))
        each = zip(self.timm.feature_info, blocks, widths, strict=True)
        self.values_kept = sum(
            (preprocessing.size // info["reduction"]) ** 2 * count * width
            for info, count, width in each
        )

    def walk(
        self, images_B3HW: Tensor, attached: Attachment | None, prompts: Tensor | None = None
    ) -> NetworkOutput:
        walk = self._walk_convnext if self._is_convnext else self._walk_swin
        return walk(images_B3HW, attached, prompts)

    def _walk_convnext(
        self, images_B3HW: Tensor, attached: Attachment | None, prompts: Tensor | None
    ) -> NetworkOutput:
        x_BDHW = _per_position(attached, self.timm.stem(images_B3HW), prompts)
        levels: list[tuple[Tensor, Tensor | None]] = []
        layer = 0
        for stage in self.timm.stages:
            x_BDHW = stage.downsample(x_BDHW)
            for block in stage.blocks:
                beside = _beside(attached, layer, x_BDHW.permute(0, 2, 3, 1))
                x_BDHW = block(x_BDHW)
                if beside is not None:
                    x_BDHW = x_BDHW + beside.permute(0, 3, 1, 2)
                layer += 1
            levels.append((positions_of(x_BDHW), None))
        return NetworkOutput(levels, self.pool(self.timm.norm_pre(x_BDHW)))

    def _walk_swin(
        self, images_B3HW: Tensor, attached: Attachment | None, prompts: Tensor | None
    ) -> NetworkOutput:
        x_BHWD = self.timm.patch_embed(images_B3HW)
        x_BDHW = _per_position(attached, x_BHWD.permute(0, 3, 1, 2), prompts)
        x_BHWD = x_BDHW.permute(0, 2, 3, 1)
        levels: list[tuple[Tensor, Tensor | None]] = []
        layer = 0
        for stage in self.timm.layers:
            x_BHWD = stage.downsample(x_BHWD)
            for block in stage.blocks:
                h_BHWD = x_BHWD + block._attn(block.norm1(x_BHWD))
                x_BHWD = h_BHWD + block.mlp(block.norm2(h_BHWD))
                if (beside := _beside(attached, layer, h_BHWD)) is not None:
                    x_BHWD = x_BHWD + beside
                layer += 1
            levels.append((x_BHWD.flatten(1, 2), None))
        return NetworkOutput(levels, self.pool(self.timm.norm(x_BHWD)))


def why_not_staged(model: Any) -> str:
    """Say why this walk would be wrong for a network; "" for ConvNeXt and Swin."""
    if type(model) is ConvNeXt:
        blocks = [block for stage in model.stages for block in stage.blocks]
        kind: type[nn.Module] = ConvNeXtBlock
    elif type(model) is SwinTransformer:
        blocks = [block for stage in model.layers for block in stage.blocks]
        kind = SwinTransformerBlock
    else:
        return f"it is a {type(model).__name__}, neither timm's ConvNeXt nor its SwinTransformer"
    others = {type(block).__name__ for block in blocks if type(block) is not kind}
    return f"its blocks are {', '.join(sorted(others))}" if others else ""


def _per_position(attached: Attachment | None, x_BDHW: Tensor, prompts: Tensor | None) -> Tensor:
    """Repeat the batch before the first block as often as the attachment needs."""
    if attached is None:
        return x_BDHW
    height = x_BDHW.shape[2]
    tokens_BND = attached.tokens(positions_of(x_BDHW), prompts)
    return tokens_BND.transpose(1, 2).unflatten(2, (height, -1))


def _beside(attached: Attachment | None, layer: int, h_BHWD: Tensor) -> Tensor | None:
    """Return what is added beside the MLP of this block."""
    if attached is None:
        return None
    branch_BND = attached.branch(layer, h_BHWD.flatten(1, 2))
    return None if branch_BND is None else branch_BND.unflatten(1, h_BHWD.shape[1:3])

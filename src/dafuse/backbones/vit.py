"""The Vision Transformer: timm builds it, our forward pass walks its blocks once."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.layers.attention import Attention
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.attach import Attachment
from dafuse.backbones.backbone import Need
from dafuse.backbones.depths import Depths, levels_of_tokens
from dafuse.backbones.network import Network, unit_scale
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError


class ViT(Network):
    """A plain Vision Transformer, with every place where a module may attach."""

    offers: ClassVar[frozenset[Need]] = frozenset(
        {"features", "adapters", "prompts", "whole network", "last block"}
    )

    def __init__(self, timm_vit: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__(timm_vit, preprocessing, tag)
        if why := why_not_plain(timm_vit):
            name = tag or type(timm_vit).__name__
            raise DafuseError(f"backbone {name} is not a plain ViT that dafuse can serve: {why}")
        width, blocks = self.timm.embed_dim, len(self.timm.blocks)
        self.levels = levels_of_tokens(blocks, width)
        self.stages = [(blocks, width)]
        self.tokens: int = self.timm.patch_embed.num_patches + self.timm.num_prefix_tokens
        self.values_kept = self.tokens * width * blocks

    @property
    def squared_length(self) -> float:
        return float(self.timm.norm.weight.square().sum())

    def forward(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, D]: the CLS token, the attachment's readout, or several depths."""
        if depths != "last":
            return self.at_depths(images_B3HW, attached, [depths], prompts)[depths]
        if attached is None:
            return self.encode(images_B3HW, cls_alone=True)[:, 0]
        x_BND = self.encode(
            images_B3HW, attached, cls_alone=attached.reads_cls_alone, prompts=prompts
        )
        return attached.readout(x_BND, prompts)

    def at_depths(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None,
        kinds: Sequence[Depths],
        prompts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        after_blocks: list[Tensor] = []
        last_BND = self.encode(images_B3HW, attached, after_blocks=after_blocks, prompts=prompts)

        def level(block: int) -> tuple[Tensor, Tensor]:
            inner = block < self.depth - 1
            tokens_BND = unit_scale(after_blocks[block]) if inner else last_BND.float()
            return tokens_BND[:, 0], tokens_BND[:, self.timm.num_prefix_tokens :]

        return self.read(kinds, level)

    def encode(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        cls_alone: bool = False,
        after_blocks: list[Tensor] | None = None,
        prompts: Tensor | None = None,
    ) -> Tensor:
        """Return all tokens [B, N, D] after the final norm, as timm's ``forward_features`` does.

        Args:
            images_B3HW: normalised images
            attached: the attachment, called at its places
            cls_alone: return only the CLS token, if possible; then the last block need not compute
                the others, only attend to them
            after_blocks: called with the tokens after each block, before any norm
            prompts: the images' prompts, for an attachment that takes them
        """
        vit = self.timm
        x_BND = vit.norm_pre(vit.patch_drop(vit._pos_embed(_embed(vit.patch_embed, images_B3HW))))
        if attached is not None:
            x_BND = attached.tokens(x_BND, prompts)
        for layer, block in enumerate(vit.blocks):
            asking = 1 if cls_alone and layer == self.depth - 1 else None
            prefix = attached.prefix(layer, prompts) if attached is not None else None
            attention = _attend(block.attn, block.norm1(x_BND), prefix, asking)
            h_BND = x_BND[:, :asking] + block.ls1(attention)
            x_BND = h_BND + block.ls2(block.mlp(block.norm2(h_BND)))
            branch = attached.branch(layer, h_BND) if attached is not None else None
            if branch is not None:
                x_BND = x_BND + branch
            if after_blocks is not None:
                after_blocks.append(x_BND)
        return vit.norm(x_BND)


def queries_keys_values(
    attn: Attention, x_BND: Tensor, asking: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each [B, H, N, D/H] before its norm; optionally queries of the first tokens only."""
    if asking is None:
        q, k, v = attn.qkv(x_BND).chunk(3, dim=2)
    else:
        weight, bias = attn.qkv.weight, attn.qkv.bias
        queries = slice(len(weight) // 3)
        others = slice(len(weight) // 3, None)
        q = F.linear(x_BND[:, :asking], weight[queries], None if bias is None else bias[queries])
        both = F.linear(x_BND, weight[others], None if bias is None else bias[others])
        k, v = both.chunk(2, dim=2)
    return heads(attn, q), heads(attn, k), heads(attn, v)


def heads(attn: Attention, x_BND: Tensor) -> Tensor:
    return x_BND.unflatten(2, (attn.num_heads, attn.head_dim)).transpose(1, 2)


def _attend(
    attn: Attention, x_BND: Tensor, prefix: tuple[Tensor, Tensor] | None, asking: int | None
) -> Tensor:
    """Apply timm's attention, with the prefix's keys and values in front, if any."""
    if prefix is None and asking is None:
        return attn(x_BND)
    q, k, v = queries_keys_values(attn, x_BND, asking)
    if prefix is not None:
        extra_k, extra_v = (heads(attn, t.expand(len(x_BND), -1, -1)) for t in prefix)
        k, v = torch.cat([extra_k, k], dim=2), torch.cat([extra_v, v], dim=2)
    out = F.scaled_dot_product_attention(attn.q_norm(q), attn.k_norm(k), v)
    return attn.proj(attn.norm(out.transpose(1, 2).flatten(2)))


def _embed(embed: Any, images_B3HW: Tensor) -> Tensor:
    """Apply timm's patch embedding: for patches that do not overlap, it is one product."""
    if type(embed) is not PatchEmbed or not embed.flatten or embed.dynamic_img_pad:
        return embed(images_B3HW)
    height, width = embed.patch_size
    patches = images_B3HW.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    patches_BNP = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return embed.norm(F.linear(patches_BNP, embed.proj.weight.flatten(1), embed.proj.bias))


def why_not_plain(model: Any) -> str:
    """Say why this forward pass would be wrong for a network; "" for a plain ViT."""
    if type(model) is not VisionTransformer:
        return f"it is a {type(model).__name__}, not timm's VisionTransformer"
    if model.cls_token is None:
        return "it has no CLS token"
    if model.global_pool != "token" or isinstance(model.norm, nn.Identity):
        return "its feature is pooled over patches, not the normed CLS token"
    for block in model.blocks:
        if type(block) is not Block or type(block.attn) is not Attention:
            kinds = f"{type(block).__name__} with {type(getattr(block, 'attn', None)).__name__}"
            return f"its blocks are {kinds}"
        if getattr(block.attn, "gate", None) is not None:
            return "its attention is gated"
    return ""

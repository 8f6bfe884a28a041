"""The Vision Transformer: timm builds it, our forward walks its blocks once."""

from copy import deepcopy
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths, Part, parts_of
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError


class ViT(nn.Module):
    """Features of images under whatever is attached. Frozen, but for a copy made to be trained."""

    def __init__(self, timm_vit: nn.Module, preprocessing: Preprocessing, tag: str = "") -> None:
        super().__init__()
        self.timm = require_plain_vit(timm_vit, tag)
        self.preprocessing = preprocessing
        self.tag = tag
        self.sha256 = self.source = ""  # of the weights it was loaded from, and where they lay
        self.width: int = self.timm.embed_dim
        self.depth = len(self.timm.blocks)
        self.tokens: int = self.timm.patch_embed.num_patches + self.timm.num_prefix_tokens
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "ViT":
        """Always in evaluation mode: a ViT of the field has no layer that trains differently."""
        return super().train(False)

    def forward(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        depths: Depths = "last",
    ) -> Tensor:
        """Features [B, D]: the CLS token, what the attachment reads out, or several depths'."""
        if depths != "last":
            return self.at_depths(images_B3HW, attached, depths)
        if attached is None:
            return self.encode(images_B3HW, cls_alone=True)[:, 0]
        x_BND = self.encode(images_B3HW, attached, cls_alone=attached.reads_cls_alone)
        return attached.readout(x_BND)

    def at_depths(self, images_B3HW: Tensor, attached: Attachment | None, depths: Depths) -> Tensor:
        """Features of several blocks side by side [B, parts x D], as float32."""
        after_blocks: list[Tensor] = []
        last_BND = self.encode(images_B3HW, attached, after_blocks=after_blocks)
        return self.read(after_blocks, last_BND, depths)

    def read(self, after_blocks: list[Tensor], last_BND: Tensor, depths: Depths) -> Tensor:
        """What these depths have [B, parts x D] of what one call of `encode` gave."""
        parts, prefix = parts_of(depths, self.depth), self.timm.num_prefix_tokens
        found: list[Tensor] = []
        for block in sorted({part.block for part in parts}):
            if block == self.depth - 1:
                tokens_BND = last_BND.float()
            else:
                tokens_BND = F.layer_norm(after_blocks[block].float(), (self.width,))
            found += _read(tokens_BND, block, parts, prefix)
        return torch.cat(found, dim=1)

    def width_at(self, depths: Depths) -> int:
        """How many numbers the features of these depths have."""
        return self.width * len(parts_of(depths, self.depth))

    def encode(
        self,
        images_B3HW: Tensor,
        attached: Attachment | None = None,
        cls_alone: bool = False,
        after_blocks: list[Tensor] | None = None,
    ) -> Tensor:
        """All tokens [B, N, D] after the final norm, as timm's ``forward_features`` gives them.

        Args:
            images_B3HW: normalised
            attached: asked at its places
            cls_alone: the CLS token alone, where no other is asked for: then the last block need
                not compute the others, only look at them
            after_blocks: takes the tokens after each block, before any norm
        """
        vit = self.timm
        x_BND = vit.norm_pre(vit.patch_drop(vit._pos_embed(_embed(vit.patch_embed, images_B3HW))))
        if attached is not None:
            x_BND = attached.tokens(x_BND)
        for layer, block in enumerate(vit.blocks):
            asking = 1 if cls_alone and layer == self.depth - 1 else None
            prefix = attached.prefix(layer) if attached is not None else None
            attention = _attend(block.attn, block.norm1(x_BND), prefix, asking)
            h_BND = x_BND[:, :asking] + block.ls1(attention)
            x_BND = h_BND + block.ls2(block.mlp(block.norm2(h_BND)))
            branch = attached.branch(layer, h_BND) if attached is not None else None
            if branch is not None:
                x_BND = x_BND + branch
            if after_blocks is not None:
                after_blocks.append(x_BND)
        return vit.norm(x_BND)

    def trainable_copy(self) -> "ViT":
        """A copy of its own whose every weight may be trained."""
        return deepcopy(self).requires_grad_(True)

    def cast_once(self, dtype: torch.dtype) -> "ViT":
        """A copy that holds its products' weights as autocast would cast them in every pass."""
        copy = deepcopy(self)
        for module in copy.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.to(dtype)
        return copy


def _read(tokens_BND: Tensor, block: int, parts: list[Part], prefix: int) -> list[Tensor]:
    """These parts [B, D] of a block's normalised tokens, of which so many come before the patches.

    An empty list where nothing is read of this block.
    """
    wanted = [part.what for part in parts if part.block == block]
    patches_BPD = tokens_BND[:, prefix:]
    found = []
    for what in wanted:
        if what == "cls":
            found.append(tokens_BND[:, 0])
        elif what == "mean":
            found.append(patches_BPD.mean(1))
        else:
            found.append(torch.std(patches_BPD, dim=1, correction=0))
    return found


def queries_keys_values(
    attn: Attention, x_BND: Tensor, asking: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, H, N, D/H] each, before their norms; queries of the first tokens only, where so asked."""
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
    """timm's attention, with extra keys and values in front where there is a prefix."""
    if prefix is None and asking is None:
        return attn(x_BND)
    q, k, v = queries_keys_values(attn, x_BND, asking)
    if prefix is not None:
        extra_k, extra_v = (heads(attn, t.expand(len(x_BND), -1, -1)) for t in prefix)
        k, v = torch.cat([extra_k, k], dim=2), torch.cat([extra_v, v], dim=2)
    out = F.scaled_dot_product_attention(attn.q_norm(q), attn.k_norm(k), v)
    return attn.proj(attn.norm(out.transpose(1, 2).flatten(2)))


def _embed(embed: Any, images_B3HW: Tensor) -> Tensor:
    """timm's patch embedding: a convolution of patches that do not overlap is one product."""
    if type(embed) is not PatchEmbed or not embed.flatten or embed.dynamic_img_pad:
        return embed(images_B3HW)
    height, width = embed.patch_size
    patches = images_B3HW.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    patches_BNP = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return embed.norm(F.linear(patches_BNP, embed.proj.weight.flatten(1), embed.proj.bias))


def require_plain_vit(model: nn.Module, tag: str) -> VisionTransformer:
    """Refuse, by name, what this forward would compute wrongly."""
    name = tag or type(model).__name__

    def refuse(why: str) -> DafuseError:
        return DafuseError(f"backbone {name} is not a plain ViT that dafuse can serve: {why}")

    if type(model) is not VisionTransformer:
        raise refuse(f"it is a {type(model).__name__}, not timm's VisionTransformer")
    if model.cls_token is None:
        raise refuse("it has no CLS token")
    if model.global_pool != "token" or isinstance(model.norm, nn.Identity):
        raise refuse("its feature is pooled over patches, not the normed CLS token")
    for block in model.blocks:  # type: ignore[union-attr]
        if type(block) is not Block or type(block.attn) is not Attention:
            kinds = f"{type(block).__name__} with {type(getattr(block, 'attn', None)).__name__}"
            raise refuse(f"its blocks are {kinds}")
        if getattr(block.attn, "gate", None) is not None:
            raise refuse("its attention is gated")
    return model

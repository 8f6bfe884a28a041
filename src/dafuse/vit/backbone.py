"""The Vision Transformer: timm builds it, our forward walks its blocks once."""

from copy import deepcopy

import torch
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.vit.attach import Attachment


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

    def forward(self, images_B3HW: Tensor, attached: Attachment | None = None) -> Tensor:
        """Features [B, D]: the CLS token, or what the attachment reads out."""
        x_BND = self.encode(images_B3HW, attached)
        return x_BND[:, 0] if attached is None else attached.readout(x_BND)

    def encode(self, images_B3HW: Tensor, attached: Attachment | None = None) -> Tensor:
        """All tokens [B, N, D] after the final norm, as timm's ``forward_features`` gives them."""
        vit = self.timm
        x_BND = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images_B3HW))))
        if attached is not None:
            x_BND = attached.tokens(x_BND)
        for layer, block in enumerate(vit.blocks):
            prefix = attached.prefix(layer) if attached is not None else None
            h_BND = x_BND + block.ls1(_attend(block.attn, block.norm1(x_BND), prefix))
            x_BND = h_BND + block.ls2(block.mlp(block.norm2(h_BND)))
            branch = attached.branch(layer, h_BND) if attached is not None else None
            if branch is not None:
                x_BND = x_BND + branch
        return vit.norm(x_BND)

    def trainable_copy(self) -> "ViT":
        """A copy of its own whose every weight may be trained."""
        return deepcopy(self).requires_grad_(True)


def _attend(attn: Attention, x_BND: Tensor, prefix: tuple[Tensor, Tensor] | None) -> Tensor:
    """timm's attention, with extra keys and values in front where there is a prefix."""
    if prefix is None:
        return attn(x_BND)
    batch, tokens, _ = x_BND.shape

    def heads(t_BND: Tensor) -> Tensor:
        t_BND = t_BND.expand(batch, -1, -1)
        return t_BND.unflatten(2, (attn.num_heads, attn.head_dim)).transpose(1, 2)

    q, k, v = attn.qkv(x_BND).chunk(3, dim=2)
    k_BHND = torch.cat([heads(prefix[0]), heads(k)], dim=2)
    v_BHND = torch.cat([heads(prefix[1]), heads(v)], dim=2)
    out = F.scaled_dot_product_attention(attn.q_norm(heads(q)), attn.k_norm(k_BHND), v_BHND)
    return attn.proj(attn.norm(out.transpose(1, 2).reshape(batch, tokens, -1)))


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

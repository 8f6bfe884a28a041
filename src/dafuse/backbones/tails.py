"""The last block of a ViT apart from the others: one trunk, and any number of tails."""

import torch
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from dafuse.backbones.attach import Attachment
from dafuse.backbones.vit import ViT, queries_keys_values

AT_ONCE = 8  # max tails in one batch: each needs the keys and values of all tokens


class AllTokens(Attachment):
    """Readout of every token: the output of a trunk, from which a tail goes on."""

    reads_cls_alone = False

    def readout(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        return x_BND


class Tail(nn.Module):
    """The last block and the final norm."""

    def __init__(self, block: Block, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return the feature [B, D]: the CLS token, the only one that a last block computes."""
        block = self.block
        h_B1D = x_BND[:, :1] + block.ls1(_attend_from_cls(block.attn, block.norm1(x_BND)))
        return self.norm(h_B1D + block.ls2(block.mlp(block.norm2(h_B1D))))[:, 0]


def split(vit: ViT) -> tuple[ViT, Tail]:
    """Split a ViT into a separate trunk and tail, both trainable.

    `AllTokens` reads out the trunk's tokens, which the tail takes: those before the last block.
    """
    trunk = vit.trainable_copy()
    *others, last = trunk.timm.blocks
    tail = Tail(last, trunk.timm.norm)
    trunk.timm.blocks, trunk.timm.norm = nn.Sequential(*others), nn.Identity()
    trunk.levels, trunk.stages = vit.levels[:-1], [(vit.depth - 1, vit.width)]
    return trunk, tail


class TailBank(Attachment):
    """Stored tails of one trunk, every parameter stacked to [K, ...]. None is trained.

    It turns the trunk's tokens into [B, K, D]: each tail's feature for each image.
    """

    reads_cls_alone = False
    compiles = False  # its size changes with each tail; its batches are large enough anyway

    def __init__(self, like: Tail) -> None:
        super().__init__()
        self.like = like  # only its structure is used, not its values
        self.stacked: dict[str, Tensor] = {}

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        """Return the parameters of one of the stored tails."""
        return {name: tensor[position] for name, tensor in self.stacked.items()}

    def append(self, tail: Tail) -> None:
        """Store a copy of this tail."""
        for name, parameter in tail.named_parameters():
            new = parameter.detach()[None]
            self.stacked[name] = torch.cat([self.stacked.get(name, new[:0]), new])

    def readout(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        def feature(parameters: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(self.like, parameters, (x_BND,))

        return torch.vmap(feature, out_dims=1, chunk_size=AT_ONCE)(self.stacked)


def _attend_from_cls(attn: Attention, x_BND: Tensor) -> Tensor:
    """Apply timm's attention with the CLS token as the only query: [B, 1, D]."""
    q_BH1D, k_BHND, v_BHND = queries_keys_values(attn, x_BND, asking=1)
    q_BH1D, k_BHND = attn.q_norm(q_BH1D), attn.k_norm(k_BHND)
    share_BH1N = torch.softmax(attn.scale * q_BH1D @ k_BHND.transpose(2, 3), dim=3)
    out = share_BH1N @ v_BHND  # explicit, because torch.vmap has no rule for the fused attention
    return attn.proj(attn.norm(out.transpose(1, 2).flatten(2)))

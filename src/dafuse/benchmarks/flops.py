"""The arithmetic that training a module beside a frozen ViT needs, and the chip's rate.

It counts the matrix products of the whole network, two operations for each multiply-add: forward
once, and backward once for each factor that is an activation. That is one for a frozen linear map
and two for each product of attention. Nothing flows back into the first block, since no trained
module comes before its end. The adapter's own products are not counted.
"""

import torch
from timm.models.vision_transformer import VisionTransformer

from dafuse.engine.devices import seconds


def forward_flops(vit: VisionTransformer) -> int:
    """Return the operations of a forward pass of one image."""
    linear, attention = _block(vit)
    patches = 2 * vit.patch_embed.num_patches * vit.patch_embed.proj.weight.numel()
    return patches + len(vit.blocks) * (linear + attention)


def training_flops(vit: VisionTransformer) -> int:
    """Return the operations of forward and backward passes of one image."""
    linear, attention = _block(vit)
    return forward_flops(vit) + (len(vit.blocks) - 1) * (linear + 2 * attention)


def _block(vit: VisionTransformer) -> tuple[int, int]:
    """Return the operations of a block's linear maps, and of its products of activations."""
    tokens = vit.patch_embed.num_patches + vit.num_prefix_tokens
    block = vit.blocks[0]
    maps = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    linear = sum(2 * tokens * each.weight.numel() for each in maps)
    return linear, 2 * 2 * tokens * tokens * vit.embed_dim


class MatmulRate:
    """Operations per second of one large product, in the precision of training on the device."""

    def __init__(self, device: torch.device, side: int, repeats: int) -> None:
        self.device, self.side, self.repeats = device, side, repeats
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.left, self.right = torch.randn(2, side, side, device=device).to(dtype)
        self._multiply()  # the first call chooses the kernel

    def measure(self) -> float:
        return 2 * self.side**3 * self.repeats / seconds(self._multiply, self.device)

    def _multiply(self) -> None:
        for _ in range(self.repeats):
            torch.mm(self.left, self.right)

"""A small ViT that computes in milliseconds, as timm builds it and as dafuse walks it."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

from dafuse.backbones.vit import ViT
from dafuse.data.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(size=32, mean=(0.5,) * 3, std=(0.5,) * 3, resize=36)


def small_timm(depth: int = 3, **arguments: Any) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=depth,
        num_heads=3,
        num_classes=0,
        **arguments,
    )


def small_vit(seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    model = small_timm()
    for parameter in model.parameters():  # far from the near-identity of a new network
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return ViT(model, PREPROCESSING, "small")


def first_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """Return what timm's own forward pass gives the first block."""
    given: list[Tensor] = []
    with model.blocks[0].register_forward_pre_hook(lambda _, tokens: given.extend(tokens)):
        model.forward_features(images)
    return given[0]

"""Small networks of many families, built by timm with random weights."""

from typing import Any

import timm
import torch
from torch import nn

from dafuse.backbones.load import network_of
from dafuse.backbones.network import Network
from dafuse.data.preprocessing import Preprocessing

STAGES: dict[str, Any] = {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 24)}
WINDOWS: dict[str, Any] = {"depths": (2, 1, 1, 1), "embed_dim": 8, "num_heads": (1, 2, 2, 4)}
TOKENS: dict[str, Any] = {"depth": 3, "embed_dim": 24, "num_heads": 3, "patch_size": 8}
# family -> timm's name, what makes it small, and its side in pixels
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "ViT": ("vit_tiny_patch16_224", TOKENS, 32),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", TOKENS, 32),
    "CLIP": ("vit_base_patch16_clip_224", TOKENS, 32),
    "SigLIP": ("vit_base_patch16_siglip_224", TOKENS, 32),
    "ViT of relative positions": ("vit_relpos_small_patch16_224", TOKENS, 32),
    "EVA": ("eva02_tiny_patch14_224", TOKENS, 32),
    "ConvNeXt": ("convnext_atto", STAGES, 64),
    "ConvNeXt V2": ("convnextv2_atto", STAGES, 64),
    "Swin": ("swin_tiny_patch4_window7_224", {**WINDOWS, "window_size": 4}, 64),
    "Swin V2": ("swinv2_tiny_window8_256", {**WINDOWS, "window_size": 4}, 64),
    "EfficientNet": ("test_efficientnet", {}, 64),
    "MobileNet": ("mobilenetv3_small_050", {}, 64),
    "ResNet": ("test_resnet", {}, 64),
}
STAGED = ("ConvNeXt", "ConvNeXt V2", "Swin")  # adapters have a place in them, prompts have not
FIXED = ("EfficientNet", "MobileNet", "ResNet", "ConvNeXt", "ConvNeXt V2")  # of any size anyway


def small_network(family: str, seed: int = 0) -> Network:
    """A network whose weights are far from the near-identity of a new one."""
    name, arguments, side = FAMILIES[family]
    if family not in FIXED:
        arguments = {**arguments, "img_size": side}
    torch.manual_seed(seed)
    model = timm.create_model(name, num_classes=0, **arguments)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.2 * parameter[0].numel() ** -0.5)
        elif name.endswith("gamma"):  # a layer scale, which starts near zero
            nn.init.ones_(parameter)
    looks = Preprocessing(side, (0.5,) * 3, (0.5,) * 3, resize=round(side * 8 / 7))
    return network_of(model, looks, f"small {family}")

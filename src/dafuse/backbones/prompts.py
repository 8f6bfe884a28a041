"""Prompts: learned vectors beside an image's own tokens, chosen for each image.

The choice is made outside the network: the chosen prompts are an argument of its forward pass, with
one of these attachments. Gradients reach whatever the prompts were computed from.
"""

import torch
from torch import Tensor

from dafuse.backbones.attach import Attachment
from dafuse.backbones.vit import ViT


def uniform_prompts(generator: torch.Generator, *shape: int) -> Tensor:
    """Return initial prompts or keys: uniform between -1 and 1."""
    return torch.rand(shape, generator=generator) * 2 - 1


class PromptTokens(Attachment):
    """Prompts [B, P, D] as extra tokens after the CLS token; the feature is their mean output.

    They get the CLS token's position embedding, if it has one.
    """

    reads_cls_alone = False
    position_11D: Tensor

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        embedding, without = vit.timm.pos_embed, vit.timm.no_embed_class
        at_cls = torch.zeros(1, 1, vit.width) if embedding is None or without else embedding[:, :1]
        self.register_buffer("position_11D", at_cls.detach().clone(), persistent=False)

    def tokens(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        extra_BPD = _required(prompts) + self.position_11D
        return torch.cat([x_BND[:, :1], extra_BPD, x_BND[:, 1:]], dim=1)

    def readout(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        return x_BND[:, 1 : 1 + _required(prompts).shape[1]].mean(1)


class PromptPrefixes(Attachment):
    """Prompts [B, L, 2, P, D]: keys and values before those of attention in the first L layers.

    On the axis of two, keys come first, then values.
    """

    def prefix(self, layer: int, prompts: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        prompts_BL2PD = _required(prompts)
        if layer >= prompts_BL2PD.shape[1]:
            return None
        return prompts_BL2PD[:, layer, 0], prompts_BL2PD[:, layer, 1]


def _required(prompts: Tensor | None) -> Tensor:
    if prompts is None:
        raise TypeError("this attachment needs the prompts of the images")
    return prompts

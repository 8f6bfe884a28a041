"""Prompts: learned vectors beside an image's own tokens, chosen for each image.

The choice is made outside the network: `give` the chosen prompts to the attachment, then compute
features. Gradients reach whatever the prompts were computed from.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.attach import Attachment
from dafuse.backbones.vit import ViT


def uniform_prompts(generator: torch.Generator, *shape: int) -> Tensor:
    """Return initial prompts or keys: uniform between -1 and 1."""
    return torch.rand(shape, generator=generator) * 2 - 1


class Prompts(Attachment):
    """The prompts [B, ...] of one batch, a row for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Tensor | None = None
        self.held: Tensor | None = None  # the given prompts, padded like the batch

    def give(self, prompts: Tensor) -> "Prompts":
        """Set the prompts of the images that are encoded next; return self."""
        self.given = prompts
        return self

    def begin(self, batch: int) -> None:
        """Hold the given prompts; if the batch was padded, pad them with zeros."""
        if self.given is None:
            raise RuntimeError("give the prompts of the images before encoding them")
        given, self.given = self.given, None  # every batch needs its own; none is used twice
        self.held = F.pad(given, (0, 0) * (given.dim() - 1) + (0, batch - len(given)))


class PromptTokens(Prompts):
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

    def tokens(self, x_BND: Tensor) -> Tensor:
        prompts_BPD = self._prompts() + self.position_11D
        return torch.cat([x_BND[:, :1], prompts_BPD, x_BND[:, 1:]], dim=1)

    def readout(self, x_BND: Tensor) -> Tensor:
        return x_BND[:, 1 : 1 + self._prompts().shape[1]].mean(1)

    def _prompts(self) -> Tensor:
        assert self.held is not None
        return self.held


class PromptPrefixes(Prompts):
    """Prompts [B, L, 2, P, D]: keys and values before those of attention in the first L layers.

    On the axis of two, keys come first, then values.
    """

    def prefix(self, layer: int) -> tuple[Tensor, Tensor] | None:
        assert self.held is not None
        if layer >= self.held.shape[1]:
            return None
        return self.held[:, layer, 0], self.held[:, layer, 1]

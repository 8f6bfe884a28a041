"""Forward passes as compiled code; checked against plain code before it is believed."""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.vit.attach import Attachment
from dafuse.vit.backbone import ViT

CHECKED_CALLS = 2  # with each attachment
TOLERANCE = 0.05  # of features against those of plain code; bf16 alone makes one or two percent


@lru_cache(maxsize=8)  # runs that share a network share its code
def compiled(network: ViT) -> Callable[..., Tensor]:
    return torch.compile(network, dynamic=False)


class CompiledForward:
    """Compiles a network when it is first asked for. Batches have one size: others are filled up.

    Without gradient, the first calls with each attachment are computed by plain code as well.
    Should the two differ, plain code is right, and goes on.
    """

    def __init__(self, full_batch: int, say: Callable[[str], None] = print) -> None:
        self.full_batch = full_batch
        self.checks = True  # not within a training step, where the device must not wait
        self.trusted = True
        self.deviation = 0.0  # the largest seen, relative to the features' length
        self._say = say
        self._calls: Counter[tuple[object, ...]] = Counter()
        torch._dynamo.config.recompile_limit = 64  # networks x attachments x batch sizes x modes

    def serves(self, attached: Attachment | None) -> bool:
        return self.trusted and (attached is None or attached.compiles)

    def __call__(self, network: ViT, images_B3SS: Tensor, attached: Attachment | None) -> Tensor:
        count = len(images_B3SS)
        if count < self.full_batch:
            images_B3SS = F.pad(images_B3SS, (0, 0, 0, 0, 0, 0, 0, self.full_batch - count))
        if attached is not None:
            attached.begin(len(images_B3SS))
        features = compiled(network)(images_B3SS, attached).float()
        if self.checks and not torch.is_grad_enabled():
            features = self._checked(features, network, images_B3SS, attached)
        return features[:count]

    def _checked(
        self, features: Tensor, network: ViT, images_B3SS: Tensor, attached: Attachment | None
    ) -> Tensor:
        kind = id(network), id(attached), images_B3SS.shape
        self._calls[kind] += 1
        if self._calls[kind] > CHECKED_CALLS:
            return features
        plain = network(images_B3SS, attached).float()
        off = float((features - plain).norm() / plain.norm().clamp(min=1e-12))
        self.deviation = max(self.deviation, off)
        if off <= TOLERANCE:
            return features
        self.trusted = False
        self._say(
            f"compiled code gives features that are off by {off:.0%}; going on without compiling"
        )
        return plain

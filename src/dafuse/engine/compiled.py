"""Forward passes as compiled code, on a GPU as recorded graphs; checked before it is believed."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.vit.attach import Attachment
from dafuse.vit.backbone import ViT

CHECKED_CALLS = 4  # of each kind: the first warms up, the second is recorded, the others replay
TOLERANCE = 0.05  # of features against those of plain code; bf16 alone makes one or two percent


class CompiledForward:
    """Compiles a network when it is first asked for. Batches have one size: others are filled up.

    Without gradient, the first calls of each kind are computed by plain code as well. Should the
    two differ, plain code is right, and goes on.
    """

    def __init__(self, full_batch: int, say: Callable[[str], None] = print) -> None:
        self.full_batch = full_batch
        self.within_step = False  # of training, where the graphs of one step belong together
        self.trusted = True
        self.deviation = 0.0  # the largest seen, relative to the features' length
        self._say = say
        self._made: dict[tuple[int, bool], Callable[..., Tensor]] = {}
        self._calls: Counter[tuple[object, ...]] = Counter()
        torch._dynamo.config.recompile_limit = 64  # networks x attachments x batch sizes x modes

    def serves(self, attached: Attachment | None) -> bool:
        return self.trusted and (attached is None or attached.compiles)

    def __call__(self, network: ViT, images_B3SS: Tensor, attached: Attachment | None) -> Tensor:
        count = len(images_B3SS)
        images_B3SS = self._filled(images_B3SS)
        if attached is not None:
            attached.begin(len(images_B3SS))
        replayed = attached is None or attached.replay
        if replayed and not self.within_step:
            torch.compiler.cudagraph_mark_step_begin()
        features = self._make(network, replayed)(images_B3SS, attached).float()
        if replayed:
            features = features.clone()  # its memory is written again by the next call
        if not torch.is_grad_enabled():
            features = self._checked(features, network, images_B3SS, attached)
        return features[:count]

    def _make(self, network: ViT, replayed: bool) -> Callable[..., Tensor]:
        """Small batches take longer to launch than to compute: record and replay them."""
        key = id(network), replayed
        if key not in self._made:
            mode = "reduce-overhead" if replayed else None
            self._made[key] = torch.compile(network, dynamic=False, mode=mode)
        return self._made[key]

    def _filled(self, images_B3SS: Tensor) -> Tensor:
        missing = max(0, self.full_batch - len(images_B3SS))
        return F.pad(images_B3SS, (0, 0, 0, 0, 0, 0, 0, missing))

    def _checked(
        self, features: Tensor, network: ViT, images_B3SS: Tensor, attached: Attachment | None
    ) -> Tensor:
        kind = id(network), type(attached), images_B3SS.shape
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

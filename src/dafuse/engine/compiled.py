"""Forward passes as compiled code, checked against plain code before it is trusted."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths
from dafuse.backbones.folded import fold, foldable
from dafuse.backbones.network import Network
from dafuse.backbones.vit import ViT
from dafuse.engine.recorded import AS_THEY_ARE, Recorded

CHECKED_CALLS = AS_THEY_ARE + 2  # of each kind of forward pass: plain, and as a CUDA graph
KEPT = 4  # kinds of forward passes that are remembered
TOLERANCE = 0.05  # relative difference from plain code's features; bf16 alone makes 1 or 2 %


@lru_cache(maxsize=8)  # runs that share a network share its code
def compiled(network: Network) -> Callable[..., Tensor]:
    return torch.compile(network, dynamic=False)


@lru_cache(maxsize=4)
def compiled_tightly(folded: Network) -> Callable[..., Tensor]:
    """Compile without padding the hidden units, whose number is odd with an adapter's beside them.

    Products take them without padding; padded ones would be copied first.
    """
    return torch.compile(folded, dynamic=False, options={"comprehensive_padding": False})


class CompiledForward:
    """Compiles a network on its first call. All batches have one size: smaller ones are padded.

    Without gradient, the first calls with each attachment are also computed by plain code. If the
    two differ, plain code is used from then on.
    """

    def __init__(self, full_batch: int, say: Callable[[str], None] = print) -> None:
        self.full_batch = full_batch
        self.checks = True  # off within a training step, where the device must not wait
        self.trusted = True
        self.deviation = 0.0  # the largest so far, relative to the features' length
        self._say = say
        self._passes: OrderedDict[Hashable, Pass] = OrderedDict()
        torch._dynamo.config.recompile_limit = 64  # networks x attachments x batch sizes x modes

    def serves(self, attached: Attachment | None) -> bool:
        return self.trusted and (attached is None or attached.compiles)

    def __call__(
        self,
        network: Network,
        images_B3SS: Tensor,
        attached: Attachment | None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        count = len(images_B3SS)
        if count < self.full_batch:
            images_B3SS = filled_up(images_B3SS, self.full_batch)
            prompts = None if prompts is None else filled_up(prompts, self.full_batch)
        if attached is not None:
            attached.begin(len(images_B3SS))
        if torch.is_grad_enabled() or not self.checks:
            return compiled(network)(images_B3SS, attached, depths, prompts).float()[:count]
        one_pass = self._pass(network, attached, images_B3SS, depths)
        features = one_pass(images_B3SS, attached, prompts)
        if one_pass.calls <= CHECKED_CALLS:
            features = self._checked(features, network, images_B3SS, attached, depths, prompts)
        return features[:count]

    def _pass(
        self, network: Network, attached: Attachment | None, images_B3SS: Tensor, depths: Depths
    ) -> "Pass":
        """Return the pass for the network and the batch's shape; adapters of a shape share it."""
        on_gpu, adapts = images_B3SS.is_cuda, False
        kind: Hashable = id(attached)
        if on_gpu and isinstance(attached, Adapter) and not attached.training:
            shapes = tuple(p.shape for p in attached.parameters())
            adapts, kind = True, (shapes, attached.scale)
        key = id(network), kind, images_B3SS.shape, depths
        if key not in self._passes:
            folds = adapts and foldable(network)
            records = on_gpu and (folds or attached is None)
            self._passes[key] = Pass(network, folds, records, self._say, depths)
        self._passes.move_to_end(key)
        while len(self._passes) > KEPT:
            self._passes.popitem(last=False)
        return self._passes[key]

    def _checked(
        self,
        features: Tensor,
        network: Network,
        images_B3SS: Tensor,
        attached: Attachment | None,
        depths: Depths,
        prompts: Tensor | None,
    ) -> Tensor:
        plain = network(images_B3SS, attached, depths, prompts).float()
        off = float((features - plain).norm() / plain.norm().clamp(min=1e-12))
        self.deviation = max(self.deviation, off)
        if off <= TOLERANCE:
            return features
        self.trusted = False
        self._say(
            f"compiled code gives features that are off by {off:.0%}; going on without compiling"
        )
        return plain


def filled_up(batch: Tensor, size: int) -> Tensor:
    """Return the batch with zeros after it, up to this size."""
    return F.pad(batch, (0, 0) * (batch.dim() - 1) + (0, size - len(batch)))


class Pass:
    """Forward passes without gradient through one network, for batches of one shape.

    If it folds, adapters become part of a copy of the network; if it records, CUDA graphs replace
    the passes. Keeps a reference to the network, so its `id()` cannot be reused.
    """

    def __init__(
        self,
        network: Network,
        folds: bool,
        records: bool,
        say: Callable[[str], None],
        depths: Depths = "last",
    ) -> None:
        self.network, self.depths = network, depths
        self.attached: Attachment | None = None
        self.calls = 0  # with the current adapter's values
        self._folded: Network | None = None
        self._folds = folds
        self._values: list[tuple[int, int]] = []  # addresses and versions of the folded adapter
        self._run: Callable[..., Tensor] = self._compute
        if records:
            self._run = Recorded(self._compute, "this forward pass", say)

    def __call__(
        self, images_B3SS: Tensor, attached: Attachment | None, prompts: Tensor | None = None
    ) -> Tensor:
        if self._folds and isinstance(attached, Adapter) and isinstance(self.network, ViT):
            self._fold(self.network, attached)
        self.attached = attached
        self.calls += 1
        return self._run(images_B3SS) if prompts is None else self._run(images_B3SS, prompts)

    def _fold(self, network: ViT, adapter: Adapter) -> None:
        """Fold into memory that stays in place, so that CUDA graphs hold for every adapter."""
        values = [(p.data_ptr(), p._version) for p in adapter.parameters()]
        if self.attached is adapter and self._values == values:
            return
        folded = fold(network, adapter, in_two_products=True)
        if self._folded is None:
            self._folded = folded
        else:
            self._folded.load_state_dict(folded.state_dict())
            self.calls = min(self.calls, AS_THEY_ARE)  # check again
        self._values = values

    def _compute(self, images_B3SS: Tensor, prompts: Tensor | None = None) -> Tensor:
        if self._folded is not None:
            return compiled_tightly(self._folded)(images_B3SS, None, self.depths).float()
        run = compiled(self.network)
        return run(images_B3SS, self.attached, self.depths, prompts).float()

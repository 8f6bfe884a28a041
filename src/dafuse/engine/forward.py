"""One object for all that makes a forward pass fast: `Forward`.

It fills batches up, compiles networks, folds adapters into them and replaces passes by CUDA graphs.
It knows when what it keeps is no longer valid. Compiled code is checked against plain code before
it is trusted.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths
from dafuse.backbones.folded import fold, foldable
from dafuse.backbones.network import Network
from dafuse.backbones.vit import ViT
from dafuse.engine.cuda_graphs import AS_THEY_ARE, GraphedWork

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


class Forward:
    """Features of images, computed in the run's precision and as fast as the device allows.

    It may compile a network on its first call; then all batches have one size, and smaller ones are
    filled up. Without gradient, the first calls with each attachment are also computed by plain
    code. If the two differ, plain code is used from then on.
    """

    def __init__(
        self,
        network: Network,
        fabric: Fabric,
        at_once: int,
        compiles: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        with fabric.autocast():
            casts = torch.is_autocast_enabled(fabric.device.type)
            dtype = torch.get_autocast_dtype(fabric.device.type)
        self.dtype = dtype if casts else torch.float32  # of products
        self.at_once = at_once  # images, counted once for each copy that passes
        self.full_batch = at_once  # the size to which smaller batches are filled up
        self.compiles = compiles  # until compiled code turns out to be wrong
        # the largest difference of compiled code so far, relative to the features' length
        self.deviation: float | None = 0.0 if compiles else None
        self._frozen = _cast_once(network, dtype) if casts else network
        self._fabric, self._say = fabric, say
        self._checks = True  # off within a training step, where the device must not wait
        self._passes: OrderedDict[Hashable, Pass] = OrderedDict()
        if compiles:  # networks x attachments x batch sizes x modes
            torch._dynamo.config.recompile_limit = 64

    def __call__(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, ...] as float32; see `methods.contract`."""
        network = network or self._frozen
        count, copies = len(images_B3SS), attached.copies if attached is not None else 1
        if copies > 1 and count > (most := max(1, self.at_once // copies)):
            starts = range(0, count, most)
            prompts_of_parts = [
                None if prompts is None else prompts[at : at + most] for at in starts
            ]
            parts = zip(images_B3SS.split(most), prompts_of_parts, strict=True)
            return torch.cat([self(x, attached, network, depths, p) for x, p in parts])
        with self._fabric.autocast():
            if self.compiles and (attached is None or attached.compiles):
                return self._compiled(network, images_B3SS, attached, depths, prompts)
            if attached is not None:
                attached.begin(count)
            return network(images_B3SS, attached, depths, prompts).float()

    @contextmanager
    def batches_of(self, size: int) -> Iterator[None]:
        """Fill batches up to this size meanwhile."""
        before, self.full_batch = self.full_batch, size
        try:
            yield
        finally:
            self.full_batch = before

    @contextmanager
    def training(self, trained: nn.Module, batch_size: int) -> Iterator[None]:
        """Have a module in training mode meanwhile; no step waits for the device."""
        trained.train()
        self._checks = False
        try:
            with self.batches_of(batch_size):
                yield
        finally:
            trained.eval()
            self.weights_changed(trained)
            self._checks = True

    def weights_changed(self, module: nn.Module) -> None:
        """Have what was computed from the module's weights computed again.

        Passes look at the versions of tensors, which steps launched as CUDA graphs leave alone.
        """
        increment_version(list(module.parameters()))

    def _compiled(
        self,
        network: Network,
        images_B3SS: Tensor,
        attached: Attachment | None,
        depths: Depths,
        prompts: Tensor | None,
    ) -> Tensor:
        count = len(images_B3SS)
        if count < self.full_batch:
            images_B3SS = filled_up(images_B3SS, self.full_batch)
            prompts = None if prompts is None else filled_up(prompts, self.full_batch)
        if attached is not None:
            attached.begin(len(images_B3SS))
        if torch.is_grad_enabled() or not self._checks:
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
            graphs = on_gpu and (folds or attached is None)
            self._passes[key] = Pass(network, folds, graphs, self._say, depths)
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
        self.deviation = max(self.deviation or 0.0, off)
        if off <= TOLERANCE:
            return features
        self.compiles = False
        self._say(
            f"compiled code gives features that are off by {off:.0%}; going on without compiling"
        )
        return plain


@lru_cache(maxsize=1)  # runs that share a network share the copy and its compiled code
def _cast_once(network: Network, dtype: torch.dtype) -> Network:
    return network.cast_once(dtype)


def filled_up(batch: Tensor, size: int) -> Tensor:
    """Return the batch with zeros after it, up to this size."""
    return F.pad(batch, (0, 0) * (batch.dim() - 1) + (0, size - len(batch)))


class Pass:
    """Forward passes without gradient through one network, for batches of one shape.

    If it folds, adapters become part of a copy of the network; with graphs, CUDA graphs replace the
    passes. Keeps a reference to the network, so its `id()` cannot be reused.
    """

    def __init__(
        self,
        network: Network,
        folds: bool,
        graphs: bool,
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
        if graphs:
            self._run = GraphedWork(self._compute, "this forward pass", say)

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

"""The bottleneck adapter beside each MLP, stored as four tensors stacked over the blocks.

    y = h + MLP(norm(h)) + scale * (up(dropout(relu(down(h)))))

It reads the residual stream h before the MLP's norm. `tensors()` gives a dict of four tensors;
fusing, averaging, saving and comparing adapters is arithmetic on it. A network whose stages have
different widths (`staged.Staged`) has four tensors for each stage.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.attach import Attachment

Tensors = dict[str, Tensor]  # "down.weight" [L,r,D], "down.bias" [L,r], "up.weight" [L,D,r], ...
KINDS = ("down.weight", "down.bias", "up.weight", "up.bias")


class Layer(NamedTuple):
    """An adapter's tensors beside one block; there may be leading axes."""

    down_weight: Tensor  # [..., r, D]
    down_bias: Tensor  # [..., r]
    up_weight: Tensor  # [..., D, r]
    up_bias: Tensor  # [..., D]


class Adapter(Attachment):
    """An adapter beside every block of one stage, or of several."""

    def __init__(
        self,
        depth: int,
        width: int,
        rank: int = 16,
        scale: float = 0.1,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        """Initialise as a no-op: Kaiming-uniform down-projections, zeros elsewhere."""
        super().__init__()
        self.scale, self.dropout = scale, dropout
        bound = 1 / math.sqrt(width)
        down = (torch.rand(depth, rank, width, generator=generator) * 2 - 1) * bound
        self.down = _Stack(down, torch.zeros(depth, rank))
        self.up = _Stack(torch.zeros(depth, width, rank), torch.zeros(depth, width))

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        hidden = F.relu(self.down(layer, h_BND))
        hidden = F.dropout(hidden, self.dropout, self.training)
        return self.scale * self.up(layer, hidden)

    def tensors(self) -> Tensors:
        """Return a detached copy of the four tensors."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def set(self, tensors: Mapping[str, Tensor]) -> "Adapter":
        """Set these values; return self."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(tensors[name])
        return self


class StagedAdapter(Adapter):
    """An adapter for each stage of a network; block numbers run through all stages.

    It is empty for a network without places for adapters, and then changes nothing.
    """

    def __init__(self, stages: Sequence[Adapter], scale: float, dropout: float) -> None:
        Attachment.__init__(self)  # it has no tensors of its own
        self.scale, self.dropout = scale, dropout
        self.stages = nn.ModuleList(stages)
        self._places = [
            (stage, block) for stage in stages for block in range(len(stage.down.weight))
        ]

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        stage, block = self._places[layer]
        return stage.branch(block, h_BND)


def adapter_beside(
    stages: Sequence[tuple[int, int]],
    rank: int = 16,
    scale: float = 0.1,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
) -> Adapter:
    """Return a new adapter for a network with stages of so many blocks and such a width."""
    made = [Adapter(depth, width, rank, scale, dropout, generator) for depth, width in stages]
    return made[0] if len(made) == 1 else StagedAdapter(made, scale, dropout)


def layers_of(tensors: Mapping[str, Tensor], axis: int = 0) -> list[Layer]:
    """Return the tensors beside each block, over all stages; blocks are counted along ``axis``."""
    layers: list[Layer] = []
    for stage in _stages_in(tensors):
        named = (tensors[f"{stage}{kind}"].unbind(axis) for kind in KINDS)
        layers += [Layer(*of_layer) for of_layer in zip(*named, strict=True)]
    return layers


def up_weights(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the up-projections of each stage."""
    return [tensors[f"{stage}up.weight"] for stage in _stages_in(tensors)]


def _stages_in(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the prefixes before "up.weight" in the names: "" alone, or "stages.0." and so on."""
    prefixes = (name.removesuffix("up.weight") for name in tensors if name.endswith("up.weight"))
    return sorted(prefixes, key=lambda stage: (len(stage), stage))


class _Stack(nn.Module):
    """One linear map for each layer, in one weight and one bias tensor."""

    def __init__(self, weight_LOI: Tensor, bias_LO: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight_LOI), nn.Parameter(bias_LO)

    def forward(self, layer: int, x_BNI: Tensor) -> Tensor:
        return F.linear(x_BNI, self.weight[layer], self.bias[layer])


class AdapterForEach(Attachment):
    """An adapter without dropout, of which every image of a batch has its own copy.

    All copies have the same values and take no memory, but each has its own gradient: that of one
    image's loss (`fusion.gradients`).
    """

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.own: Tensors = {}  # "down.weight" [B, L, r, D], ...
        self._layers: list[Layer] = []

    def begin(self, batch: int) -> None:
        """Make new copies, without gradients."""
        self.own = {
            name: p.detach().expand(batch, *p.shape).requires_grad_()
            for name, p in self.adapter.named_parameters()
        }
        self._layers = layers_of(self.own, axis=1)

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        return self.adapter.scale * each_branch(h_BND, self._layers[layer])


def each_branch(x_KMD: Tensor, layer: Layer) -> Tensor:
    """Apply K adapters beside one block, each to its own tokens; not scaled."""
    hidden_KMr = F.relu(each_linear(x_KMD, layer.down_weight, layer.down_bias))
    return each_linear(hidden_KMr, layer.up_weight, layer.up_bias)


def each_linear(x_KMI: Tensor, weight_KOI: Tensor, bias_KO: Tensor) -> Tensor:
    """Apply K linear maps, each to its own inputs."""
    return torch.baddbmm(bias_KO[:, None], x_KMI, weight_KOI.transpose(1, 2))


class AdapterBank(Attachment):
    """Stored adapters, stacked: `down.weight` is [K, L, r, D], and so on. None is trained.

    The features are [B, K, D]: each image under each adapter. The batch is repeated before the
    first block and passes as one, so K adapters cost the arithmetic of K forward passes but launch
    only one.
    """

    compiles = False  # its size changes with each adapter; its batches are large enough anyway

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.scale = scale
        self.stacked: Tensors = {}
        self._layers: list[Layer] = []

    def __len__(self) -> int:
        return len(next(iter(self.stacked.values()), ()))

    @property
    def copies(self) -> int:
        return len(self)

    def append(self, adapter: Tensors) -> None:
        """Store another adapter."""
        for name, tensor in adapter.items():
            new = tensor.detach()[None]
            old = self.stacked.get(name, new[:0])
            self.stacked[name] = torch.cat([old.to(new.device), new])

    def __getitem__(self, position: int) -> Tensors:
        """Return one of the stored adapters."""
        return {name: tensor[position] for name, tensor in self.stacked.items()}

    def take(self, positions: Sequence[int]) -> "AdapterBank":
        """Return a bank of the adapters at these positions."""
        bank = AdapterBank(self.scale)
        bank.stacked = {name: tensor[list(positions)] for name, tensor in self.stacked.items()}
        return bank

    def mean(self) -> Tensors:
        """Return the mean of the stored adapters."""
        return {name: tensor.mean(0) for name, tensor in self.stacked.items()}

    def with_one_more(self, adapter: Tensors) -> "AdapterBank":
        """Return a bank of these adapters and another one."""
        bank = AdapterBank(self.scale)
        bank.stacked = dict(self.stacked)
        bank.append(adapter)
        return bank

    def tokens(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        self._layers = layers_of(self.stacked, axis=1)
        return x_BND.repeat(len(self), 1, 1)

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        tokens_KMD = h_BND.unflatten(0, (len(self), -1)).flatten(1, 2)
        return self.scale * each_branch(tokens_KMD, self._layers[layer]).reshape(h_BND.shape)

    def readout(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        return x_BND[:, 0].unflatten(0, (len(self), -1)).transpose(0, 1)

"""The bottleneck adapter beside each MLP, kept as four tensors stacked over the layers.

    y = h + MLP(norm(h)) + scale * (up(dropout(relu(down(h)))))

It reads the residual stream h before the second norm. Fusing, averaging, saving and comparing
adapters is arithmetic on the dict of four tensors that `tensors()` gives.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.vit.attach import Attachment

Tensors = dict[str, Tensor]  # "down.weight" [L,r,D], "down.bias" [L,r], "up.weight" [L,D,r], ...


class Adapter(Attachment):
    def __init__(
        self,
        depth: int,
        width: int,
        rank: int = 16,
        scale: float = 0.1,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        """A no-op at the start: Kaiming-uniform down-projections, zeros elsewhere."""
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
        """A detached copy of the four tensors."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def set(self, tensors: Mapping[str, Tensor]) -> "Adapter":
        """Take these values; returns itself."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(tensors[name])
        return self


class _Stack(nn.Module):
    """One linear map for each layer, in one weight and one bias tensor."""

    def __init__(self, weight_LOI: Tensor, bias_LO: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight_LOI), nn.Parameter(bias_LO)

    def forward(self, layer: int, x_BNI: Tensor) -> Tensor:
        return F.linear(x_BNI, self.weight[layer], self.bias[layer])


class ProbedAdapter(Attachment):
    """An adapter without dropout whose linear maps can be watched.

    A zero is added to the output of each map; the gradient with respect to that zero is the
    gradient at the output. With the maps' inputs, which are remembered, it gives every sample's
    own gradient (`fusion.gradients`).
    """

    def __init__(self, adapter: Adapter, tokens: int) -> None:
        super().__init__()
        self.adapter, self.sequence = adapter, tokens
        self.inputs: list[Tensor] = []  # of down and up of layer 0, down and up of layer 1, ...
        self.probes: list[Tensor] = []

    def begin(self, batch: int) -> None:
        """New zeros, and nothing remembered."""
        depth, rank, width = self.adapter.down.weight.shape
        device = self.adapter.down.weight.device
        self.inputs = []
        self.probes = [
            torch.zeros(batch, tokens, size, device=device, requires_grad=True)
            for tokens in [self.sequence] * (depth - 1) + [1]  # the last block computes CLS alone
            for size in (rank, width)
        ]

    def watched(self) -> list[tuple[str, int, Tensor, Tensor]]:
        """After a forward pass: map, layer, its inputs, the zero at its output."""
        maps = [(name, layer) for layer in range(len(self.inputs) // 2) for name in ("down", "up")]
        watched = zip(maps, self.inputs, self.probes, strict=True)
        return [(name, layer, seen, probe) for (name, layer), seen, probe in watched]

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        z_BNr = self.adapter.down(layer, h_BND) + self.probes[2 * layer]
        a_BNr = F.relu(z_BNr)
        self.inputs += [h_BND, a_BNr]
        return self.adapter.scale * (self.adapter.up(layer, a_BNr) + self.probes[2 * layer + 1])

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

from dafuse.backbones.attach import Attachment

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


class AdapterForEach(Attachment):
    """An adapter without dropout, of which every image of a batch has a copy of its own.

    All copies hold the same values and take no memory, but each has its own gradient: that of one
    image's loss (`fusion.gradients`).
    """

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.own: Tensors = {}  # "down.weight" [B, L, r, D], ...
        self._layers: dict[str, tuple[Tensor, ...]] = {}

    def begin(self, batch: int) -> None:
        """New copies, without gradients."""
        self.own = {
            name: p.detach().expand(batch, *p.shape).requires_grad_()
            for name, p in self.adapter.named_parameters()
        }
        self._layers = {name: tensor.unbind(1) for name, tensor in self.own.items()}

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        hidden = F.relu(self._linear("down", layer, h_BND))
        return self.adapter.scale * self._linear("up", layer, hidden)

    def _linear(self, name: str, layer: int, x_BNI: Tensor) -> Tensor:
        weight_BOI, bias_BO = (self._layers[f"{name}.{kind}"][layer] for kind in ("weight", "bias"))
        return each_linear(x_BNI, weight_BOI, bias_BO)


def each_linear(x_KMI: Tensor, weight_KOI: Tensor, bias_KO: Tensor) -> Tensor:
    """K linear maps, each of its own inputs."""
    return torch.baddbmm(bias_KO[:, None], x_KMI, weight_KOI.transpose(1, 2))

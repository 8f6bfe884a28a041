"""A network with its adapter inside: for prediction only, with nothing attached.

A block's second half is y = h + MLP(norm(h)) + scale * up(relu(down(h))). Both terms end in a
linear map, so one map over the hidden units of both, side by side, gives their sum:

    y = h + [act(fc1(norm(h))), relu(down(h))] @ [fc2, scale * up]^T + (b_fc2 + scale * b_up)
"""

from copy import deepcopy

import torch
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.vit.adapter import Adapter, Tensors
from dafuse.vit.backbone import ViT


def fold(vit: ViT, adapter: Adapter) -> ViT:
    """A copy of the network on the CPU that gives, with nothing attached, what it gave with this.

    Up to rounding: sums are taken in another order.
    """
    folded = deepcopy(vit).cpu()
    tensors = {name: tensor.cpu() for name, tensor in adapter.tensors().items()}
    for layer, block in enumerate(folded.timm.blocks):
        of_layer = {name: tensor[layer] for name, tensor in tensors.items()}
        kind = _Merged if _ends_in_linear(block.mlp) else _Beside
        block.mlp = kind(block, of_layer, adapter.scale)
        block.norm2, block.ls2 = nn.Identity(), nn.Identity()  # both are inside now
    return folded.requires_grad_(False)


class _Merged(nn.Module):
    """Norm, MLP, layer scale and adapter of a block, whose last linear maps are one."""

    def __init__(self, block: Block, adapter: Tensors, scale: float) -> None:
        super().__init__()
        mlp = block.mlp
        self.norm, self.fc1, self.act = block.norm2, mlp.fc1, mlp.act
        self.down = _linear(adapter["down.weight"], adapter["down.bias"])
        up_DR, up_D = scale * adapter["up.weight"], scale * adapter["up.bias"]
        gamma_D = getattr(block.ls2, "gamma", torch.ones_like(up_D))
        fc2_D = torch.zeros_like(up_D) if mlp.fc2.bias is None else mlp.fc2.bias
        weight_DH = torch.cat([gamma_D[:, None] * mlp.fc2.weight, up_DR], dim=1)
        self.last = _linear(weight_DH, gamma_D * fc2_D + up_D)

    def forward(self, h_BND: Tensor) -> Tensor:
        hidden = [self.act(self.fc1(self.norm(h_BND))), F.relu(self.down(h_BND))]
        return self.last(torch.cat(hidden, dim=2))


class _Beside(nn.Module):
    """The same of an MLP that ends in something else, with the adapter beside it."""

    def __init__(self, block: Block, adapter: Tensors, scale: float) -> None:
        super().__init__()
        self.norm, self.mlp, self.ls = block.norm2, block.mlp, block.ls2
        self.down = _linear(adapter["down.weight"], adapter["down.bias"])
        self.up = _linear(scale * adapter["up.weight"], scale * adapter["up.bias"])

    def forward(self, h_BND: Tensor) -> Tensor:
        return self.ls(self.mlp(self.norm(h_BND))) + self.up(F.relu(self.down(h_BND)))


def _ends_in_linear(mlp: nn.Module) -> bool:
    """Whether it is fc2(act(fc1(x))) and nothing else; gated ones are not."""
    return type(mlp) is Mlp and isinstance(mlp.fc2, nn.Linear) and isinstance(mlp.norm, nn.Identity)


def _linear(weight_OI: Tensor, bias_O: Tensor) -> nn.Linear:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0])
    with torch.no_grad():
        linear.weight.copy_(weight_OI)
        linear.bias.copy_(bias_O)
    return linear

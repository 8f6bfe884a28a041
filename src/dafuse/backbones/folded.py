"""A network with its adapter folded in: for prediction only, without attachments.

A block's second half is y = h + MLP(norm(h)) + scale * up(relu(down(h))). Both terms end in a
linear map, so one map over the concatenated hidden units of both gives their sum:

    y = h + [act(fc1(norm(h))), relu(down(h))] @ [fc2, scale * up]^T + (b_fc2 + scale * b_up)

Both terms also begin with a linear map, of different inputs. With a token's mean m and std s, the
norm is gamma * n + beta with n = (h - m) / s. So h = s * n + m, and one map of n serves both:

    fc1(norm(h)) = (W_fc1 * gamma) @ n + (W_fc1 @ beta + b_fc1)
    down(h) = s * (W_down @ n) + m * (W_down @ 1) + b_down

A block then has as many products as without an adapter.
"""

from copy import deepcopy
from typing import TypeGuard

import torch
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, Tensors
from dafuse.backbones.network import Network
from dafuse.backbones.vit import ViT

FEW_TOKENS = 2048  # ten images of 224 pixels; below, launching takes longer than computing


def fold(vit: ViT, adapter: Adapter, in_two_products: bool = False) -> ViT:
    """Return a copy of the network that computes the same without the adapter attached.

    Results agree up to rounding, because sums are taken in another order.

    Args:
        vit: the network; it does not change
        adapter: the adapter, whose values are copied
        in_two_products: faster where launching counts, on a GPU; `foldable` networks only
    """
    folded = deepcopy(vit)
    for layer, block in enumerate(folded.timm.blocks):
        of_layer = {name: tensor[layer] for name, tensor in adapter.tensors().items()}
        kind = _InTwoProducts if in_two_products else _Merged if _plain(block.mlp) else _Beside
        block.mlp = kind(block, of_layer, adapter.scale)
        block.norm2, block.ls2 = nn.Identity(), nn.Identity()  # both are inside the new MLP
    return folded.requires_grad_(False)


def foldable(network: Network) -> TypeGuard[ViT]:
    """Tell whether adapters can be folded in two products, without changing the network."""
    frozen = not any(parameter.requires_grad for parameter in network.parameters())
    return (
        frozen
        and isinstance(network, ViT)
        and all(
            _plain(block.mlp)
            and isinstance(block.norm2, nn.LayerNorm)
            and isinstance(block.ls2, nn.Identity | LayerScale)
            for block in network.timm.blocks
        )
    )


class _InTwoProducts(nn.Module):
    """Norm, MLP, layer scale and adapter of a block as two maps of the normalised tokens."""

    def __init__(self, block: Block, adapter: Tensors, scale: float) -> None:
        super().__init__()
        norm, fc1 = block.norm2, block.mlp.fc1
        weight_HD, dtype = fc1.weight.float(), fc1.weight.dtype
        down_RD = adapter["down.weight"].to(dtype).float()  # as the product rounds it
        gamma_D, beta_D = (
            torch.full_like(weight_HD[0], default) if given is None else given.float()
            for given, default in ((norm.weight, 1.0), (norm.bias, 0.0))
        )
        bias_H = weight_HD @ beta_D + (0 if fc1.bias is None else fc1.bias.float())
        self.hidden = len(weight_HD)  # units of the MLP, followed by those of the adapter

        def after_them(values_R: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(bias_H), values_R])

        bias_K = torch.cat([bias_H, torch.zeros_like(down_RD[:, 0])])
        self.first = _linear(torch.cat([gamma_D * weight_HD, down_RD]), bias_K).to(dtype)
        self.of_mean_K = nn.Buffer(after_them(down_RD.sum(1)))
        self.bias_K = nn.Buffer(after_them(adapter["down.bias"]))
        self.of_adapter_K = nn.Buffer(after_them(torch.ones_like(down_RD[:, 0])).bool())
        self.last = _last(block, adapter, scale).to(dtype)
        self.act, self.eps = block.mlp.act, norm.eps

    def forward(self, h_BND: Tensor) -> Tensor:
        n_BND, mean_BN1, rstd_BN1 = torch.native_layer_norm(
            h_BND, h_BND.shape[2:], None, None, self.eps
        )
        both = self.first(n_BND)
        few = h_BND.shape[0] * h_BND.shape[1] <= FEW_TOKENS
        units = slice(None) if few else slice(self.hidden, None)
        shift = mean_BN1 * self.of_mean_K[units] + self.bias_K[units]
        relu = F.relu(both[..., units] / rstd_BN1 + shift).to(both.dtype)
        if few:  # one kernel that computes too much is faster than two
            return self.last(torch.where(self.of_adapter_K, relu, self.act(both)))
        return self.last(torch.cat([self.act(both[..., : self.hidden]), relu], dim=2))


class _Merged(nn.Module):
    """The same with a separate down-projection of the adapter: faster where computing counts."""

    def __init__(self, block: Block, adapter: Tensors, scale: float) -> None:
        super().__init__()
        self.norm, self.fc1, self.act = block.norm2, block.mlp.fc1, block.mlp.act
        self.down = _linear(adapter["down.weight"], adapter["down.bias"])
        self.last = _last(block, adapter, scale)

    def forward(self, h_BND: Tensor) -> Tensor:
        hidden = [self.act(self.fc1(self.norm(h_BND))), F.relu(self.down(h_BND))]
        return self.last(torch.cat(hidden, dim=2))


class _Beside(nn.Module):
    """The same for an MLP that does not end in a linear map, with the adapter beside it."""

    def __init__(self, block: Block, adapter: Tensors, scale: float) -> None:
        super().__init__()
        self.norm, self.mlp, self.ls = block.norm2, block.mlp, block.ls2
        self.down = _linear(adapter["down.weight"], adapter["down.bias"])
        self.up = _linear(scale * adapter["up.weight"], scale * adapter["up.bias"])

    def forward(self, h_BND: Tensor) -> Tensor:
        return self.ls(self.mlp(self.norm(h_BND))) + self.up(F.relu(self.down(h_BND)))


def _plain(mlp: nn.Module) -> bool:
    """Tell whether the MLP is fc2(act(fc1(x))) and nothing else; gated ones are not."""
    return type(mlp) is Mlp and isinstance(mlp.fc2, nn.Linear) and isinstance(mlp.norm, nn.Identity)


def _last(block: Block, adapter: Tensors, scale: float) -> nn.Linear:
    """Return the last map of the MLP, layer scale included, and that of the adapter as one."""
    fc2 = block.mlp.fc2
    up_DR, up_D = scale * adapter["up.weight"], scale * adapter["up.bias"]
    gamma_D = getattr(block.ls2, "gamma", torch.ones_like(up_D))
    fc2_D = torch.zeros_like(up_D) if fc2.bias is None else fc2.bias
    weight_DH = torch.cat([gamma_D[:, None] * fc2.weight, up_DR], dim=1)
    return _linear(weight_DH, gamma_D * fc2_D + up_D)


def _linear(weight_OI: Tensor, bias_O: Tensor) -> nn.Linear:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], device=weight_OI.device)
    with torch.no_grad():
        linear.weight.copy_(weight_OI)
        linear.bias.copy_(bias_O)
    return linear

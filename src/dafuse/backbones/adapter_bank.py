"""Several adapters on one network at once: every image passes with each of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dafuse.backbones.adapter import Layer, Tensors, each_branch, layers_of
from dafuse.backbones.attach import Attachment


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

"""Training as in published research code: the yardstick of speed, and a check of numerics.

Eager float32. Images go through torchvision's transforms of Pillow images in worker processes; each
layer has an adapter of linear modules; each batch is a step, after which the loss is read.
`PlainTrainer` puts this loop in place of the engine's, so that it can train any method.
"""

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from dafuse.backbones.adapter import Adapter, Tensors
from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths
from dafuse.backbones.network import Network
from dafuse.data.batches import Batch, Loader
from dafuse.data.dataset import Augmentation, ImageSet
from dafuse.data.preprocessing import Preprocessing
from dafuse.data.stream import Task
from dafuse.engine.trainer import Trainer
from dafuse.methods.contract import Loss
from dafuse.methods.schedule import Group, Schedule

WORKERS = min(8, os.cpu_count() or 1)  # published code has 8; more than cores would slow it
Feed = Callable[[Task, ImageSet, int, int], Iterable[Batch]]  # task, images, batch size, epoch
Branch = Callable[[int, Tensor], Tensor | None]  # layer, residual stream -> addition to its MLP


def plain_features(vit: VisionTransformer, images_B3SS: Tensor, branch: Branch) -> Tensor:
    """Return the CLS token after the final norm, computed block by block without shortcuts."""
    x_BND = vit.norm_pre(vit._pos_embed(vit.patch_embed(images_B3SS)))
    for layer, block in enumerate(vit.blocks):
        h_BND = x_BND + block.ls1(block.attn(block.norm1(x_BND)))
        x_BND = h_BND + block.ls2(block.mlp(block.norm2(h_BND)))
        beside = branch(layer, h_BND)
        x_BND = x_BND if beside is None else x_BND + beside
    return vit.norm(x_BND)[:, 0]


class PlainAdapters(nn.Module):
    """An adapter's four stacked tensors as modules for each layer."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.scale = adapter.scale
        depth, rank, width = adapter.down.weight.shape
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, rank),
                nn.ReLU(),
                nn.Dropout(adapter.dropout),
                nn.Linear(rank, width),
            )
            for _ in range(depth)
        )
        self.to(adapter.down.weight.device)
        with torch.no_grad():
            for name, values in adapter.tensors().items():
                for parameter, value in zip(self._of(name), values, strict=True):
                    parameter.copy_(value)

    def branch(self, layer: int, h_BND: Tensor) -> Tensor:
        return self.scale * self.layers[layer](h_BND)

    def tensors(self) -> Tensors:
        """Return the tensors, stacked again."""
        names = [f"{part}.{kind}" for part in ("down", "up") for kind in ("weight", "bias")]
        return {name: torch.stack(self._of(name)).detach() for name in names}

    def _of(self, name: str) -> list[Tensor]:
        part, kind = name.split(".")
        position = {"down": "0", "up": "3"}[part]
        return [layer.get_parameter(f"{position}.{kind}") for layer in self.layers]


def plain_fit(
    loss: Loss,
    groups: Sequence[Group],
    batches: Callable[[int], Iterable[Batch]],  # epoch -> its batches
    schedule: Schedule,
    device: torch.device,
    after_step: Callable[[], None] | None = None,
) -> list[list[float]]:
    """Train by SGD with the schedule's numbers; return every step's loss."""
    settings = [{"params": list(g.parameters), "lr": schedule.lr * g.rate} for g in groups]
    optimiser = torch.optim.SGD(
        settings, schedule.lr, schedule.momentum, weight_decay=schedule.weight_decay
    )
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda epoch: schedule.decay(epoch, schedule.epochs)
    )
    losses: list[list[float]] = []
    for epoch in range(schedule.epochs):
        losses.append([])
        for images, labels in batches(epoch):
            value = loss(images.to(device), labels.to(device))
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            if after_step is not None:
                after_step()
            losses[-1].append(value.item())
        decay.step()
    return losses


def pillow_batches(
    images: ImageSet,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    batch_size: int,
    workers: int = WORKERS,
) -> "DataLoader[Batch]":
    """Yield an epoch's batches in the machine's memory; the workers start again in each epoch."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                preprocessing.size, augmentation.scale, augmentation.ratio
            ),
            transforms.RandomHorizontalFlip(augmentation.flip),
            transforms.ToTensor(),
            transforms.Normalize(preprocessing.mean, preprocessing.std),
        ]
    )
    return DataLoader(_Pillow(images, transform), batch_size, shuffle=True, num_workers=workers)


class _Pillow(TorchDataset[Batch]):
    """Pixels in memory that become Pillow images one by one."""

    def __init__(self, images: ImageSet, transform: Callable[[Image.Image], Tensor]) -> None:
        assert isinstance(images.items, np.ndarray)
        self.pixels, self.images, self.transform = images.items, images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Batch:
        image = Image.fromarray(self.pixels[self.images.index[row]])
        return self.transform(image), torch.tensor(self.images.labels[row])


class PlainTrainer(Trainer):
    """Trainer of adapters by `plain_fit`, with features by `plain_features`.

    The rest is the engine's: test batches, and attachments other than an adapter.
    """

    def __init__(
        self, network: Network, loader: Loader, fabric: Fabric, seed: int, feed: Feed
    ) -> None:
        super().__init__(network, loader, fabric, seed, compiled=False)
        self.feed = feed
        self._in_training: PlainAdapters | None = None

    def fit(
        self,
        task: Task,
        attached: Attachment | None,
        loss: Loss,
        groups: Sequence[Group],
        schedule: Schedule,
        *,
        images: ImageSet | None = None,
        after_step: Callable[[], None] | None = None,
        epochs_before: int = 0,
    ) -> None:
        assert isinstance(attached, Adapter)  # the plain loop knows nothing else
        trained = images or task.train
        modules = PlainAdapters(attached)
        own = {id(parameter) for parameter in attached.parameters()}
        others = [
            Group([p for p in group.parameters if id(p) not in own], group.rate) for group in groups
        ]
        self._in_training = modules
        try:
            with self.phase("train", schedule.epochs * len(trained)):
                losses = plain_fit(
                    loss,
                    [Group(list(modules.parameters())), *others],
                    lambda epoch: self.feed(
                        task, trained, schedule.batch_size, epochs_before + epoch
                    ),
                    schedule,
                    self.device,
                    after_step,
                )
        finally:
            self._in_training = None
        attached.set(modules.tensors())
        self.epoch_losses += [sum(epoch) / len(epoch) for epoch in losses]

    def encode(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        if depths != "last":
            return super().encode(images_B3SS, attached, network, depths, prompts)
        vit = (network or self.network).timm
        if self._in_training is not None:
            return plain_features(vit, images_B3SS, self._in_training.branch)
        if isinstance(attached, Adapter):
            return plain_features(vit, images_B3SS, attached.branch)
        return super().encode(images_B3SS, attached, network, prompts=prompts)


def pillow_feed(loader: Loader, workers: int) -> Feed:
    """Feed the loader's images through Pillow, in worker processes that start in each epoch."""
    augmentation = loader.dataset.augmentation
    return lambda task, images, batch_size, epoch: pillow_batches(
        images, loader.preprocessing, augmentation, batch_size, workers
    )

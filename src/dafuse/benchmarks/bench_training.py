"""Optimiser steps: images per second against the plain loop and against the chip's arithmetic.

The arithmetic is that of training a module beside a frozen ViT: the matrix products of the whole
network, two operations for each multiply-add. Forward counts once, and backward once for each
factor that is an activation: once for a frozen linear map, twice for each product of attention.
Nothing flows back into the first block, since no trained module comes before its end. The adapter's
own products are not counted.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer

from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.plain_loop import WORKERS, Feed, PlainTrainer, pillow_feed
from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
from dafuse.benchmarks.setting import (
    DEIT_TINY,
    SEED,
    VIT_BASE,
    Parts,
    Setting,
    network,
    random_images,
    short,
    world,
)
from dafuse.data.batches import Batch
from dafuse.data.stream import Task
from dafuse.engine.devices import launch, seconds
from dafuse.engine.trainer import Trainer
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter
from dafuse.seeds import torch_generator

CLASSES, RANK = 4, 16


@dataclass(frozen=True)
class TrainingSizes:
    networks: tuple[str, ...]
    batch: int
    per_class: int
    epochs: int  # of a measured fit; the plain loop has one
    matmul: tuple[int, int]  # side, repeats
    workers: int = WORKERS


SIZES = {
    "gpu": TrainingSizes((DEIT_TINY, VIT_BASE), 48, 600, 20, (8192, 20)),  # 50 steps in an epoch
    "cpu": TrainingSizes(
        (DEIT_TINY,), 48, 24, 1, (2048, 3)
    ),  # two steps, because one takes seconds
    "quick": TrainingSizes((COMPACT,), 8, 3, 1, (256, 2), workers=1),
}
LARGE_WIDTH, LARGE_EPOCHS, LARGE_ROUNDS = 384, 8, 3  # for networks that take seconds for a round
GOALS = {  # for one H200: multiple of the plain loop, of the floor, or images per second
    VIT_BASE: {"plain": Goal("ratio", least=10), "floor": Goal("ratio", least=0.5)},
    DEIT_TINY: {"own": Goal("value", least=20_000)},
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    tags = (setting.backbone,) if setting.backbone else sizes.networks
    return {short(tag): partial(_measure, setting, sizes, tag) for tag in tags}


def _measure(setting: Setting, sizes: TrainingSizes, tag: str) -> list[BenchRow]:
    fabric, vit = setting.fabric(), network(tag)
    dataset = random_images(CLASSES, sizes.per_class)
    trainer, stream = world(vit, dataset, CLASSES, fabric)
    device, task = fabric.device, stream[0]
    eager = launch(device.type, "fp32", deterministic=False)

    def plain(feed: Feed) -> Callable[[], float]:
        return _rate(PlainTrainer(vit, trainer.loader, eager, SEED, feed), task, sizes.batch, 1)

    large = vit.width > LARGE_WIDTH
    loading = pillow_feed(trainer.loader, sizes.workers)
    matmul = MatmulRate(device, *sizes.matmul)
    variants = {
        "plain": plain(loading),
        "ready": plain(_ready(task.size, sizes.batch, vit.preprocessing.size, device)),
        "loading": lambda: _loading_rate(loading(task, task.train, sizes.batch, 0)),
        "own": _rate(
            trainer, task, sizes.batch, min(sizes.epochs, LARGE_EPOCHS) if large else sizes.epochs
        ),
        "floor": lambda: matmul.measure() / training_flops(vit.timm),
    }
    most = LARGE_ROUNDS if large else None
    measured = setting.alternate(variants, f"train {short(tag)}", ("own", "ready"), most)
    return _rows(measured, GOALS.get(tag, {}) if setting.on_gpu else {})


def _rows(measured: dict[str, Measured], goals: dict[str, Goal]) -> list[BenchRow]:
    plain, floor = ("the plain loop", measured["plain"]), ("the floor", measured["floor"])

    def row(what: str, key: str, **details: Any) -> BenchRow:
        return compared(what, "images/s", measured[key], **details)

    return [
        row("the plain loop", "plain", note="eager float32, Pillow in worker processes"),
        row("the plain loop, images ready on the device", "ready", baseline=plain),
        row("loading alone", "loading", baseline=plain),
        row("dafuse", "own", baseline=plain, goal=goals.get("plain") or goals.get("own")),
        row("arithmetic floor", "floor", note="forward and activation backward, at matmul speed"),
        row("dafuse beside the floor", "own", baseline=floor, goal=goals.get("floor")),
    ]


def _rate(trainer: Trainer, task: Task, batch: int, epochs: int) -> Callable[[], float]:
    """Return the images per second of a whole fit."""
    adapter = init_adapter(trainer, "benchmark", RANK)
    schedule = Schedule(epochs, batch, lr=0.01, weight_decay=5e-4)

    def measure() -> float:
        trainer.begin_task()
        fit_with_proxy(trainer, task, adapter, schedule)
        return trainer.images["train"] / trainer.seconds["train"]

    return measure


def _loading_rate(batches: Iterable[Batch]) -> float:
    """Return the images per second of loading alone."""
    start = time.perf_counter()
    count = sum(len(labels) for _, labels in batches)
    return count / (time.perf_counter() - start)


def _ready(classes: int, batch: int, size: int, device: torch.device) -> Feed:
    """Yield the same batch again and again, on the device."""
    images_B3SS = torch.randn(batch, 3, size, size, generator=torch_generator(SEED, "ready"))
    ready = images_B3SS.to(device), torch.arange(batch, device=device) % classes
    return lambda task, images, batch_size, epoch: [ready] * math.ceil(len(images) / batch_size)


def forward_flops(vit: VisionTransformer) -> int:
    """Return the operations of a forward pass of one image."""
    linear, attention = _block(vit)
    patches = 2 * vit.patch_embed.num_patches * vit.patch_embed.proj.weight.numel()
    return patches + len(vit.blocks) * (linear + attention)


def training_flops(vit: VisionTransformer) -> int:
    """Return the operations of forward and backward passes of one image."""
    linear, attention = _block(vit)
    return forward_flops(vit) + (len(vit.blocks) - 1) * (linear + 2 * attention)


def _block(vit: VisionTransformer) -> tuple[int, int]:
    """Return the operations of a block's linear maps, and of its products of activations."""
    tokens = vit.patch_embed.num_patches + vit.num_prefix_tokens
    block = vit.blocks[0]
    maps = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    linear = sum(2 * tokens * each.weight.numel() for each in maps)
    return linear, 2 * 2 * tokens * tokens * vit.embed_dim


class MatmulRate:
    """Operations per second of one large product, in the precision of training on the device."""

    def __init__(self, device: torch.device, side: int, repeats: int) -> None:
        self.device, self.side, self.repeats = device, side, repeats
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.left, self.right = torch.randn(2, side, side, device=device).to(dtype)
        self._multiply()  # the first call chooses the kernel

    def measure(self) -> float:
        return 2 * self.side**3 * self.repeats / seconds(self._multiply, self.device)

    def _multiply(self) -> None:
        for _ in range(self.repeats):
            torch.mm(self.left, self.right)

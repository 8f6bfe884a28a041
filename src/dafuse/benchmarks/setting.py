"""The options of a benchmark, and its worlds of random images and weights."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric

from dafuse.backbones.load import build_backbone
from dafuse.backbones.network import Network
from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.rounds import BenchRow, Measured, alternate
from dafuse.data.arrays import arrays
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset
from dafuse.data.stream import Stream, task_sizes
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.progress import Progress
from dafuse.seeds import derive, numpy_generator

SEED = 1993
DEIT_TINY = "deit_tiny_patch16_224.fb_in1k"
VIT_BASE = "vit_base_patch16_224.augreg_in21k"
SHORT = {COMPACT: "compact", DEIT_TINY: "DeiT-Tiny", VIT_BASE: "ViT-B/16"}
Parts = dict[
    str, Callable[[], list[BenchRow]]
]  # parts of a benchmark: if one fails, the others go on
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Setting:
    """The options of `dafuse bench`."""

    device: str = "auto"
    rounds: int = 5
    backbone: str | None = None  # replaces the benchmark's own
    quick: bool = False
    demo: bool = False
    classes: tuple[int, ...] = ()  # of `bench scale`; none: its own
    images: tuple[int, ...] = ()
    width: int | None = None  # columns of its made-up features
    progress: Progress = field(default_factory=Progress)

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    def sizes(self, by_place: Mapping[str, Sizes]) -> Sizes:
        """Return the sizes for "gpu", "cpu" or "quick"."""
        return by_place["quick" if self.quick else "gpu" if self.on_gpu else "cpu"]

    def fabric(self, device: str | None = None) -> Fabric:
        """Return the chosen device, in the precision that dafuse would use there."""
        device = device or self.device
        gpu = self.on_gpu if device == self.device else device == "cuda"
        return launch(device, "bf16" if gpu else "fp32", deterministic=False)

    def alternate(
        self,
        variants: Mapping[str, Callable[[], float]],
        label: str,
        warm_up: Collection[str] = (),
        most: int | None = None,
    ) -> dict[str, Measured]:
        """Run the chosen number of rounds, or at most so many long ones."""
        rounds = self.rounds if most is None else min(self.rounds, most)
        with self.progress.bar(label, rounds * len(variants) + len(warm_up)) as bar:
            return alternate(variants, rounds, bar, warm_up)


def network(tag: str) -> Network:
    """Build a network with random weights: speed does not depend on them, nothing is downloaded."""
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(SEED, "weights"))
        return build_backbone(tag)


def short(tag: str) -> str:
    return SHORT.get(tag, tag)


def random_images(classes: int, per_class: int, side: int = 32) -> Dataset:
    """Return noise in memory, as small as CIFAR's images; the content does not affect speed."""
    rng = numpy_generator(SEED, "pixels")
    pixels = rng.integers(0, 256, (classes * per_class, side, side, 3), dtype=np.uint8)
    labels = np.repeat(np.arange(classes), per_class)
    return arrays(pixels, labels, pixels[:classes], np.arange(classes), name="noise")


def world(
    vit: Network, dataset: Dataset, increment: int, fabric: Fabric, compiled: bool | None = None
) -> tuple[Trainer, Stream]:
    """Return a trainer, compiled as in a run, and the stream of tasks."""
    loader = Loader(dataset, vit.preprocessing, fabric.device)
    count = len(dataset.classes)
    stream = Stream(loader.dataset, range(count), task_sizes(count, increment))
    return Trainer(vit, loader, fabric, SEED, compiled=compiled), stream

"""A trainer, a stream and a method on the small network and data: they learn in a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dafuse.backbones.network import Network
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.methods.contract import Method
from dafuse.report.drawing import Drawing
from helpers.small_datasets import save_arrays, small_dataset
from helpers.small_networks import small_vit


def small_trainer(
    dataset: Dataset,
    seed: int = 7,
    compiled: bool = False,
    device: str = "cpu",
    network: Network | None = None,
) -> Trainer:
    network = network or small_vit()
    fabric = launch(device, "fp32", deterministic=False)
    loader = Loader(dataset, network.preprocessing, fabric.device)
    return Trainer(network, loader, fabric, seed, compiled=compiled)


def enter_small_world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, counts: Sequence[int], test_count: int = 4
) -> None:
    """Go to a folder with small data, small.npz; pages are made without their figures."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")  # so that the terminal breaks no line
    monkeypatch.setattr(Drawing, "svg", lambda _: '<svg role="img"></svg>')
    save_arrays(small_dataset([*counts], test_count), folder / "small.npz")


def small_stream(dataset: Dataset, sizes: list[int]) -> Stream:
    return Stream(dataset, range(len(dataset.classes)), sizes)


def small_learned(
    method_class: type[Method], sizes: list[int], tasks: int | None = None, **options: Any
) -> tuple[Any, Trainer, Stream]:
    """A method that has learned a stream of tasks of these sizes, or the first few of them."""
    dataset = small_dataset([5] * sum(sizes))
    trainer, stream = small_trainer(dataset), small_stream(dataset, sizes)
    method = method_class(trainer=trainer, **options)
    for task in list(stream)[:tasks]:
        method.learn(task)
    return method, trainer, stream

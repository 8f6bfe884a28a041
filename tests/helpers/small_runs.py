"""A trainer, a stream and a method on the small network and data: they learn in a second."""

from typing import Any

from dafuse.backbones.network import Network
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.methods.contract import Method
from helpers.small_datasets import small_dataset
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

"""The engine against training as published code has it: the same losses, the same accuracy."""

import shutil
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from dafuse.backbones.adapter import Adapter
from dafuse.benchmarks.plain_loop import (
    PlainAdapters,
    PlainTrainer,
    pillow_batches,
    pillow_feed,
    plain_features,
)
from dafuse.data.batches import Batch
from dafuse.data.dataset import Augmentation, ImageSet
from dafuse.data.stream import Task
from dafuse.engine.evaluate import evaluate
from dafuse.engine.trainer import Trainer
from dafuse.methods.daf import DAF
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter
from dafuse.seeds import torch_generator
from helpers.small_datasets import small_dataset
from helpers.small_networks import PREPROCESSING
from helpers.small_runs import small_stream, small_trainer

LOSSES = 1e-4  # how far an epoch's mean loss may be off, relative to it
POINTS = 0.2  # and the accuracy in percent
DATASET = small_dataset([7] * 9, test_count=60)  # an image is 0.19 points


def with_same_crops(trainer: Trainer) -> PlainTrainer:
    """The plain loop, fed with the very batches that the engine trains on."""

    def feed(task: Task, images: ImageSet, batch_size: int, epoch: int) -> Iterable[Batch]:
        generator = torch_generator(trainer.seed, "augmentation", task.index, epoch)
        return trainer.loader.train_batches(images, batch_size, generator)

    return PlainTrainer(trainer.network, trainer.loader, trainer.fabric, trainer.seed, feed)


def learned(trainer: Trainer) -> tuple[list[float], float]:
    """All epochs' losses over a short stream, and the accuracy at its end.

    Without dropout, whose masks each path draws in its own order.
    """
    method = DAF(
        trainer=trainer, epochs=4, batch_size=8, lr=0.002, adapter_rank=4, adapter_dropout=0.0,
        align_epochs=3, align_samples=16,
    )  # fmt: skip
    stream = small_stream(DATASET, [3, 3, 3])
    for task in stream:
        method.learn(task)
    tested = evaluate(method, trainer, stream.tests_until(task), task.seen)
    return list(trainer.epoch_losses), 100 * sum(tested.correct) / sum(tested.total)


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], float]:
    return learned(with_same_crops(small_trainer(DATASET)))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_fast_path_learns_what_the_plain_loop_learns(
    compiled: bool, plain: tuple[list[float], float]
) -> None:
    if compiled and not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("torch.compile needs a C++ compiler")
    losses, accuracy = learned(small_trainer(DATASET, compiled=compiled))
    assert len(losses) == 12
    assert losses == pytest.approx(plain[0], rel=LOSSES)
    assert all(losses[t + 3] < 0.8 * losses[t] for t in (0, 4, 8))  # each task was learned
    assert accuracy == pytest.approx(plain[1], abs=POINTS)
    assert accuracy > 30  # of nine classes


def test_modules_for_each_layer_are_the_stacked_adapter() -> None:
    trainer = small_trainer(DATASET)
    adapter = init_adapter(trainer, 0, rank=4)
    torch.nn.init.normal_(adapter.up.weight)
    modules = PlainAdapters(adapter).eval()
    images = torch.randn(2, 3, 32, 32)
    stacked = trainer.encode(images, adapter)
    assert torch.allclose(
        plain_features(trainer.network.timm, images, modules.branch), stacked, atol=1e-5
    )
    for name, tensor in adapter.tensors().items():
        assert torch.equal(modules.tensors()[name], tensor)


def test_images_come_by_way_of_pillow() -> None:
    """All of them once, in another order, cropped and normalised."""
    labels = np.arange(5)
    pixels = np.stack([np.full((20, 30, 3), 50 * label, np.uint8) for label in labels])
    images = ImageSet(pixels, labels)
    batches = list(pillow_batches(images, PREPROCESSING, Augmentation(), batch_size=2, workers=0))
    assert [len(part) for _, part in batches] == [2, 2, 1]
    assert sorted(torch.cat([part for _, part in batches]).tolist()) == labels.tolist()
    for crops_B3SS, part in batches:
        assert crops_B3SS.shape[1:] == (3, 32, 32)
        grey = (50 * part / 255 - 0.5) / 0.5
        assert torch.allclose(crops_B3SS, grey[:, None, None, None].expand_as(crops_B3SS))


def test_the_plain_loop_trains_from_pillow_images() -> None:
    trainer = small_trainer(DATASET)
    feed = pillow_feed(trainer.loader, workers=0)
    plain = PlainTrainer(trainer.network, trainer.loader, trainer.fabric, trainer.seed, feed)
    task = small_stream(DATASET, [9])[0]
    adapter = Adapter(3, 24, rank=4)
    before = adapter.tensors()
    fit_with_proxy(plain, task, adapter, Schedule(6, 16, lr=0.1))
    assert plain.images["train"] == 6 * len(task.train)
    assert plain.epoch_losses[-1] < plain.epoch_losses[0]
    for name, tensor in adapter.tensors().items():
        assert not torch.equal(tensor, before[name])

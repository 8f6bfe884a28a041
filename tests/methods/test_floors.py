"""Every method learns: three tasks of drawn characters on the embedded network, above its floor.

A floor is what a method must reach here, in percent of the test images of all nine classes, after
little training. Beside it stands what was measured: with training, and without any (every learning
rate of its task training 0, what follows training as ever). The floor lies between the two, some
points below the first, as other machines round otherwise. Chance is 11.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from dafuse.backbones.load import load_backbone
from dafuse.backbones.registry import COMPACT
from dafuse.backbones.vit import ViT
from dafuse.data.batches import Loader
from dafuse.data.glyphs import glyphs
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.evaluate import evaluate
from dafuse.engine.trainer import Trainer
from dafuse.methods.registry import METHODS

CLASSES, SIZES = 9, [5, 2, 2]  # some methods train on the first task alone: it is the largest
PIXELS = 64  # half of what the network was trained on: a quarter of the tokens, and more to learn
EPOCHS: dict[str, Any] = {"epochs": 6, "batch_size": 12}
ADAPTER = {**EPOCHS, "lr": 0.012}
COSINES = {**EPOCHS, "lr": 0.2}  # under cosines whose learned scale starts at 1: small gradients
NETWORK = {**EPOCHS, "epochs": 4, "lr": 5e-4}
REPLAY = {**NETWORK, "exemplars_per_class": 8}
PROMPTS = {**EPOCHS, "lr": 0.01}


class Floor(NamedTuple):
    percent: float
    trained: float  # what was measured
    untrained: float
    options: dict[str, Any]  # that make it quick here


FLOORS = {
    "daf": Floor(62, 68.3, 56.7, ADAPTER),
    "daf-paper": Floor(61, 67.8, 56.7, ADAPTER),
    "daf-retrieval": Floor(62, 69.4, 56.7, ADAPTER),
    "finetune": Floor(32, 45.0, 14.4, NETWORK),  # the lower bound: it forgets
    "joint": Floor(59, 69.4, 6.1, {**ADAPTER, "epochs": 3, "lr": 0.05}),
    "simplecil": Floor(42, 46.7, 46.7, {}),  # trains nothing
    "aper": Floor(61, 69.4, 46.7, COSINES),
    "ranpac": Floor(61, 68.9, 53.3, {**COSINES, "projection": 500}),
    "lift": Floor(53, 58.3, 58.3, {}),  # trains nothing, nor does klda
    "layup": Floor(68, 76.1, 56.7, {**COSINES, "tune": "first"}),
    "klda": Floor(51, 56.1, 56.1, {"width": 500}),
    "anacp": Floor(67, 75.6, 56.1, {**COSINES, "tune": "first", "width": 500}),
    "slca": Floor(62, 72.2, 23.3, {**EPOCHS, "lr": 0.04, "align_lr": 0.05}),
    "ssiat": Floor(55, 59.4, 53.3, {**EPOCHS, "first_epochs": 6, "lr": 0.005, "align_lr": 0.03}),
    "ease": Floor(53, 59.4, 47.8, COSINES),
    "mos": Floor(59, 65.0, 55.6, {**EPOCHS, "lr": 0.05}),
    "tuna": Floor(60, 66.7, 55.6, {**EPOCHS, "lr": 0.02, "align_lr": 0.02}),
    # its features are the outputs of prompts that know nothing at first
    "l2p": Floor(18, 25.6, 10.6, {**PROMPTS, "epochs": 4, "prompts_per_image": 3}),
    "dualprompt": Floor(38, 48.3, 9.4, PROMPTS),
    "coda": Floor(32, 40.0, 11.1, {**PROMPTS, "lr": 0.005}),
    "icarl": Floor(60, 68.3, 42.8, {**REPLAY, "epochs": 3}),
    "memo": Floor(28, 37.8, 8.3, {**REPLAY, "lr": 3e-4, "first_epochs": 4}),
    "foster": Floor(
        36, 45.6, 10.6, {**REPLAY, "lr": 2e-4, "first_epochs": 4, "compress_epochs": 2}
    ),
}


@cache
def world() -> Loader:
    """The first nine characters, decoded once."""
    drawn = glyphs(train_per_class=20, test_per_class=20, size=PIXELS)
    train, test = (part.take(part.labels < CLASSES) for part in (drawn.train, drawn.test))
    few = replace(drawn, classes=drawn.classes[:CLASSES], train=train, test=test)
    return Loader(few, backbone().preprocessing, torch.device("cpu"))


def backbone() -> ViT:
    """The embedded network for small images, its position embedding resampled."""
    vit = load_backbone(COMPACT)
    vit.timm.set_input_size(PIXELS)
    return ViT(vit.timm, replace(vit.preprocessing, size=PIXELS, resize=PIXELS), COMPACT)


@pytest.mark.parametrize("name", METHODS)
def test_reaches_its_floor(name: str) -> None:
    assert accuracy(name) >= FLOORS[name].percent


@pytest.mark.parametrize("name", ["aper", "ranpac"])
def test_a_method_that_does_not_train_stays_below_its_floor(name: str) -> None:
    """The quickest of those whose untrained score is high."""
    assert accuracy(name, lr=0.0, epochs=1) < FLOORS[name].percent


@pytest.mark.parametrize("name", METHODS)
def test_a_floor_lies_between_untrained_and_trained(name: str) -> None:
    floor = FLOORS[name]
    assert floor.percent < floor.trained
    assert name in ("simplecil", "lift", "klda") or floor.untrained < floor.percent


def accuracy(name: str, **changed: Any) -> float:
    """Percent of the test images of all classes that are right after the last task."""
    loader = world()
    fabric = launch("cpu", "fp32", deterministic=False)
    trainer = Trainer(backbone(), loader, fabric, seed=1993)
    method = METHODS[name](trainer=trainer, **(FLOORS[name].options | changed))
    stream = Stream(loader.dataset, range(CLASSES), SIZES)
    for task in stream:
        method.learn(task)
    found = evaluate(method, trainer, stream.tests_until(task), task.seen)
    return 100 * sum(found.correct) / sum(found.total)

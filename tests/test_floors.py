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
from dafuse.backbones.vit import ViT
from dafuse.backbones.weights import COMPACT
from dafuse.data.batches import Loader
from dafuse.data.glyphs import glyphs
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.evaluate import evaluate
from dafuse.engine.training import Trainer
from dafuse.methods.registry import METHODS

CLASSES, SIZES = 9, [5, 2, 2]  # some methods train on the first task alone: it is the largest
PIXELS = 32  # half of what the network was trained on: a quarter of the tokens, and more to learn
EPOCHS: dict[str, Any] = {"epochs": 6, "batch_size": 12}
ADAPTER = {**EPOCHS, "lr": 0.03}
COSINES = {**EPOCHS, "lr": 0.2}  # under cosines whose learned scale starts at 1: small gradients
NETWORK = {**EPOCHS, "epochs": 4, "lr": 2e-3}
REPLAY = {**NETWORK, "exemplars_per_class": 8}
PROMPTS = {**EPOCHS, "lr": 0.01}


class Floor(NamedTuple):
    percent: float
    trained: float  # what was measured
    untrained: float
    options: dict[str, Any]  # that make it quick here


FLOORS = {
    "daf": Floor(56, 60.6, 52.8, ADAPTER),
    "daf-paper": Floor(57, 63.3, 52.8, ADAPTER),
    "daf-retrieval": Floor(57, 61.7, 52.8, {**ADAPTER, "lr": 0.02}),
    "finetune": Floor(18, 32.2, 9.4, {**NETWORK, "lr": 1e-3}),  # the lower bound: it forgets
    "joint": Floor(53, 63.3, 12.2, {**ADAPTER, "epochs": 3}),
    "simplecil": Floor(40, 43.9, 43.9, {}),  # trains nothing
    "aper": Floor(53, 60.6, 43.9, COSINES),
    "ranpac": Floor(58, 67.2, 43.3, {**COSINES, "projection": 500}),
    "lift": Floor(53, 58.9, 58.9, {}),  # trains nothing, nor does klda
    "layup": Floor(60, 69.4, 56.7, {**COSINES, "tune": "first"}),
    "klda": Floor(53, 58.3, 58.3, {"width": 500}),
    "anacp": Floor(60, 70.0, 53.9, {**COSINES, "tune": "first", "width": 500}),
    "slca": Floor(53, 62.8, 24.4, {**EPOCHS, "lr": 0.05, "backbone_rate": 0.03, "align_lr": 0.05}),
    "ssiat": Floor(52, 57.2, 47.8, {**EPOCHS, "first_epochs": 6, "lr": 0.01}),
    # adapters of two classes help little: training gains few images here, at rates from 0.06 to 1
    "ease": Floor(44.5, 46.7, 42.8, {**EPOCHS, "lr": 0.06}),
    "mos": Floor(57, 62.8, 52.8, {**EPOCHS, "lr": 0.05}),
    "tuna": Floor(55, 58.3, 53.3, {**EPOCHS, "lr": 0.01}),  # the alignment does most of the work
    # its features are the outputs of prompts that know nothing at first
    "l2p": Floor(18, 25.6, 11.7, {**PROMPTS, "epochs": 4, "prompts_per_image": 3}),
    "dualprompt": Floor(33, 41.7, 5.0, PROMPTS),
    "coda": Floor(33, 42.2, 5.0, {**PROMPTS, "lr": 0.005}),
    "icarl": Floor(55, 62.2, 47.8, {**REPLAY, "epochs": 3}),
    "memo": Floor(29, 38.9, 10.6, {**REPLAY, "first_epochs": 4}),
    "foster": Floor(38, 47.2, 8.9, {**REPLAY, "lr": 7e-4, "first_epochs": 4, "compress_epochs": 2}),
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

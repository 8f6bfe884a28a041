"""Every method learns: three tasks of drawn characters on the embedded network, above its floor.

The floors are what a method must reach here, in percent of the test images of all nine classes,
after little training: some points below what was measured when it was added. Chance is 11.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from dafuse.data.batches import Loader
from dafuse.data.glyphs import glyphs
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.evaluate import evaluate
from dafuse.engine.training import Trainer
from dafuse.methods.registry import METHODS
from dafuse.vit.load import load_backbone
from dafuse.vit.weights import COMPACT

CLASSES, SIZES = 9, [3, 3, 3]
EPOCHS: dict[str, Any] = {"epochs": 4, "batch_size": 12}
ADAPTER = {**EPOCHS, "lr": 0.03}
NETWORK = {**EPOCHS, "lr": 2e-3}
PROMPTS = {**EPOCHS, "epochs": 6, "lr": 0.01}
# method: floor in percent, options that make it quick here
FLOORS: dict[str, tuple[float, dict[str, Any]]] = {
    "daf": (60, ADAPTER),
    "daf-paper": (60, ADAPTER),
    "daf-retrieval": (60, ADAPTER),
    "finetune": (20, NETWORK),  # the lower bound: it forgets
    "joint": (60, ADAPTER),
    "simplecil": (50, {}),
    "aper": (50, ADAPTER),
    "ranpac": (60, {**ADAPTER, "projection": 500}),
    "slca": (50, {**EPOCHS, "lr": 0.05, "align_lr": 0.05}),
    "ssiat": (60, {**ADAPTER, "first_epochs": 4}),
    "ease": (50, ADAPTER),
    "mos": (60, ADAPTER),
    "tuna": (60, ADAPTER),
    "l2p": (22, PROMPTS),  # its features are the outputs of prompts that know nothing at first
    "dualprompt": (40, PROMPTS),
    "coda": (37, {**PROMPTS, "lr": 0.005}),
    "icarl": (55, NETWORK),
    "memo": (50, {**NETWORK, "first_epochs": 4}),
    "foster": (55, {**NETWORK, "first_epochs": 4, "compress_epochs": 4}),
}


@cache
def world() -> Loader:
    """The first nine characters, decoded once."""
    drawn = glyphs(train_per_class=12, test_per_class=20)
    train, test = (part.take(part.labels < CLASSES) for part in (drawn.train, drawn.test))
    few = replace(drawn, classes=drawn.classes[:CLASSES], train=train, test=test)
    return Loader(few, load_backbone(COMPACT).preprocessing, torch.device("cpu"))


@pytest.mark.parametrize("name", METHODS)
def test_reaches_its_floor(name: str) -> None:
    assert accuracy(name) >= FLOORS[name][0]


def accuracy(name: str) -> float:
    """Percent of the test images of all classes that are right after the last task."""
    loader = world()
    fabric = launch("cpu", "fp32", deterministic=False)
    trainer = Trainer(load_backbone(COMPACT), loader, fabric, seed=1993)
    method = METHODS[name](trainer=trainer, **FLOORS[name][1])
    stream = Stream(loader.dataset, range(CLASSES), SIZES)
    for task in stream:
        method.learn(task)
    found = evaluate(method, trainer, stream.tests_until(task), task.seen)
    return 100 * sum(found.correct) / sum(found.total)

"""One learning step on two threads: five new classes of fifty images; optionally the demo."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from dafuse.backbones.load import load_backbone
from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.plain_loop import WORKERS, PlainTrainer, pillow_feed
from dafuse.benchmarks.rounds import BenchRow, Measured, compared
from dafuse.benchmarks.setting import SEED, Parts, Setting, random_images, world
from dafuse.data.stream import Stream
from dafuse.engine.devices import seconds
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.methods.daf import DAF

CLASSES = 5


@dataclass(frozen=True)
class StepSizes:
    per_class: int
    epochs: int  # as in the demo
    align_epochs: int
    rounds: int  # max number of rounds
    workers: int = WORKERS
    compiled: bool = True  # also measure compiled code
    threads: int = 2


STEP = StepSizes(50, 5, 30, 3)
SIZES = {
    "gpu": STEP,
    "cpu": STEP,
    "quick": StepSizes(3, 1, 1, 2, workers=1, compiled=False, threads=1),
}


def parts(setting: Setting) -> Parts:
    found: Parts = {"learning step": partial(_measure, setting, setting.sizes(SIZES))}
    if setting.demo:
        found["demo"] = _demo
    return found


def _measure(setting: Setting, sizes: StepSizes) -> list[BenchRow]:
    """Let each variant learn its own stream of tasks, one task in each round."""
    rounds = min(setting.rounds, sizes.rounds)
    dataset = random_images((rounds + 1) * CLASSES, sizes.per_class, side=64)
    fabric, vit = setting.fabric("cpu"), load_backbone(COMPACT)
    own, stream = world(vit, dataset, CLASSES, fabric)
    feed = pillow_feed(own.loader, sizes.workers)
    trainers = {"plain": PlainTrainer(vit, own.loader, fabric, SEED, feed), "own": own}
    if sizes.compiled:
        trainers["compiled"] = Trainer(vit, own.loader, fabric, SEED, compiled=True)
    variants: dict[str, Callable[[], float]] = {}
    for name, trainer in trainers.items():
        variants[name] = _learning(trainer, stream, sizes)
        variants[f"{name} training"] = partial(_training_seconds, trainer)
    with _threads(sizes.threads):
        measured = setting.alternate(variants, "learning step", tuple(trainers), rounds)
    labels = {"plain": "the plain loop", "own": "dafuse", "compiled": "dafuse, compiled"}
    rows = []
    for part, what in (("", "the whole step"), (" training", "its training")):
        for name in trainers:
            base = None if name == "plain" else (labels["plain"], measured[f"plain{part}"])
            label = f"{labels[name]}, {what}"
            note = "" if part else f"{CLASSES * sizes.per_class} images, {sizes.epochs} epochs"
            rows.append(compared(label, "s", measured[f"{name}{part}"], base, note=note))
    return rows


def _learning(trainer: Trainer, stream: Stream, sizes: StepSizes) -> Callable[[], float]:
    """Return the seconds of the next task: training, Fisher, fusion, statistics, alignment."""
    coming = iter(stream)
    method = DAF(trainer=trainer, epochs=sizes.epochs, align_epochs=sizes.align_epochs)

    def learn() -> float:
        trainer.begin_task()
        task = next(coming)
        method.epochs = sizes.epochs if task.index else 1  # the first task warms up
        return seconds(lambda: method.learn(task), trainer.device)

    return learn


def _training_seconds(trainer: Trainer) -> float:
    return trainer.seconds["train"]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _demo() -> list[BenchRow]:
    """Run the demo as a user starts it, in its own process; once, because it takes minutes."""

    def demo() -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "dafuse", "demo-research", "--out", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DafuseError(f"the demo failed: {done.stderr.strip()[-200:]}")

    took = Measured([seconds(demo, torch.device("cpu"))])
    return [compared("dafuse demo-research", "s", took)]

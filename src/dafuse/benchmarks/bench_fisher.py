"""Gradient and Fisher of a task against its training, both by DAF over the same images."""

from dataclasses import dataclass
from functools import partial

from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.rounds import BenchRow, Goal, compared
from dafuse.benchmarks.setting import (
    DEIT_TINY,
    Parts,
    Setting,
    network,
    random_images,
    short,
    world,
)
from dafuse.methods.daf import DAF

CLASSES = 4
GOAL = Goal("ratio", most=0.03)


@dataclass(frozen=True)
class FisherSizes:
    tag: str
    per_class: int
    epochs: int


SIZES = {
    "gpu": FisherSizes(DEIT_TINY, 600, 20),
    "cpu": FisherSizes(COMPACT, 12, 20),
    "quick": FisherSizes(COMPACT, 4, 2),
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    tag = setting.backbone or sizes.tag
    return {short(tag): partial(_measure, setting, sizes, tag)}


def _measure(setting: Setting, sizes: FisherSizes, tag: str) -> list[BenchRow]:
    """Learn a new task in each round; the first of the stream warms up."""
    tasks = setting.rounds + 1
    dataset = random_images(tasks * CLASSES, sizes.per_class)
    trainer, stream = world(network(tag), dataset, CLASSES, setting.fabric())
    method = DAF(trainer=trainer, epochs=sizes.epochs, align_epochs=0)
    coming = iter(stream)

    def train() -> float:
        trainer.begin_task()
        method.learn(next(coming))
        return trainer.seconds["train"]

    variants = {"train": train, "fisher": lambda: trainer.seconds["fisher"]}
    measured = setting.alternate(variants, f"fisher {short(tag)}", warm_up=("train",))
    training = f"training, {sizes.epochs} epochs"
    goal = GOAL if sizes.epochs == 20 else None
    return [
        compared(training, "s", measured["train"], note=f"{CLASSES * sizes.per_class} images"),
        compared(
            "gradient and Fisher",
            "s",
            measured["fisher"],
            ("training", measured["train"]),
            "share",
            goal,
            "exact per sample",
        ),
    ]

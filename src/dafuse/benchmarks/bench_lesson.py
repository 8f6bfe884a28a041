"""A `lift` lesson against the forward pass of its images, and a stream of tasks against DAF's.

Five classes of fifty images are taught to an empty model and to one that knows many classes, whose
sums are over more images than a feature has columns. Nothing is trained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from dafuse.backbones.depths import Depths
from dafuse.backbones.load import load_backbone
from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.rounds import BenchRow, Goal, compared
from dafuse.benchmarks.setting import (
    DEIT_TINY,
    SEED,
    Parts,
    Setting,
    network,
    random_images,
    short,
    world,
)
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.engine.devices import seconds
from dafuse.engine.trainer import Trainer
from dafuse.heads.arrays import from_numpy
from dafuse.heads.resting import at_rest
from dafuse.heads.sums import pooled
from dafuse.methods.contract import Method, prefixed
from dafuse.methods.daf import DAF
from dafuse.methods.lift import LIFT
from dafuse.seeds import numpy_generator

CLASSES = 5  # in each lesson
LESSON = Goal("ratio", most=1.5)  # over the forward pass
STREAM = Goal("ratio", least=20)  # times as fast as DAF


@dataclass(frozen=True)
class LessonSizes:
    per_class: int  # images, in a lesson
    known: int  # classes of the model that knows many
    more: int  # images in its sums, beyond the columns of a feature
    tasks: int  # of the stream
    per_class_of_stream: int
    network: str = COMPACT  # of the stream
    epochs: int = 20  # of DAF
    align_epochs: int = 30
    features: Depths = LIFT.features
    rounds: int | None = None  # max number of rounds of lessons
    stream_rounds: int = 1  # max number of rounds of streams


SIZES = {
    "gpu": LessonSizes(50, 100, 1000, 20, 500, DEIT_TINY),
    "cpu": LessonSizes(50, 100, 1000, 20, 5, rounds=3),
    "quick": LessonSizes(2, 6, 10, 2, 2, COMPACT, 1, 1, "last"),
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    return {
        "one lesson": partial(_lesson, setting, sizes),
        "a stream": partial(_stream, setting, sizes),
    }


def _lesson(setting: Setting, sizes: LessonSizes) -> list[BenchRow]:
    dataset = random_images(CLASSES, sizes.per_class, side=64)
    trainer, stream = world(load_backbone(COMPACT), dataset, CLASSES, setting.fabric())
    task, later = stream[0], _later(stream[0], sizes.known)
    empty, many = (LIFT(trainer=trainer, features=sizes.features, tune="none") for _ in range(2))
    _fill(many, sizes)
    variants: dict[str, Callable[[], float]] = {
        "forward": lambda: _seconds(trainer, lambda: trainer.features(task.train, None)),
        "empty": _learning(empty, task, trainer),
        "many": _learning(many, later, trainer),
    }
    measured = setting.alternate(variants, "lesson", tuple(variants), sizes.rounds)
    alone = "the forward pass", measured["forward"]
    goal = None if setting.quick else LESSON
    images = f"{len(task.train)} images"
    return [
        compared("the forward pass alone", "s", measured["forward"], note=images),
        compared("lift, an empty model", "s", measured["empty"], alone, "share", goal),
        compared(f"lift, {sizes.known} classes known", "s", measured["many"], alone, "share", goal),
    ]


def _stream(setting: Setting, sizes: LessonSizes) -> list[BenchRow]:
    """Time learning only: testing is the same for both."""
    dataset = random_images(sizes.tasks * CLASSES, sizes.per_class_of_stream)
    trainer, stream = world(network(sizes.network), dataset, CLASSES, setting.fabric())
    made: dict[str, Callable[[], Method]] = {
        "daf": lambda: DAF(trainer=trainer, epochs=sizes.epochs, align_epochs=sizes.align_epochs),
        "lift": lambda: LIFT(trainer=trainer, features=sizes.features, tune="none"),
    }
    tasks = list(stream)

    def learned(make: Callable[[], Method]) -> float:
        method = make()
        return sum(_seconds(trainer, partial(method.learn, task)) for task in tasks)

    for make in () if setting.quick else made.values():  # warm up and compile
        method = make()
        for task in tasks[:2]:
            method.learn(task)
    variants = {name: partial(learned, make) for name, make in made.items()}
    measured = setting.alternate(variants, "stream", most=sizes.stream_rounds)
    goal = None if setting.quick else STREAM
    images = f"{sizes.tasks} tasks of {CLASSES} classes of {sizes.per_class_of_stream} images"
    note = f"{short(sizes.network)}, {images}"
    return [
        compared("daf, the whole stream", "s", measured["daf"], note=note),
        compared(
            "lift, the whole stream", "s", measured["lift"], ("daf", measured["daf"]), goal=goal
        ),
    ]


def _later(task: Task, known: int) -> Task:
    """Return the same images as a lesson of classes that come after so many."""
    train = ImageSet(task.train.items, task.train.labels + known, task.train.index)
    return replace(task, index=1, first=known, train=train)


def _fill(method: LIFT, sizes: LessonSizes) -> None:
    """Teach a method classes of made-up features, of full rank."""
    width, like = method.lift.width, torch.zeros(0, device=method.trainer.device)
    count = width + sizes.more
    drawn = numpy_generator(SEED, "known").standard_normal((count, width), dtype=np.float32)
    sums = pooled(width, like)
    sums.add(from_numpy(drawn, like), from_numpy(np.arange(count) % sizes.known, like))
    resting = prefixed("statistics/sums", at_rest(sums, method.precision))
    method.load_state({**method.state(), **resting})


def _learning(method: LIFT, task: Task, trainer: Trainer) -> Callable[[], float]:
    """Return the seconds of the lesson, always for the model in the same state."""
    before = method.state()

    def learn() -> float:
        method.load_state(before)
        return _seconds(trainer, lambda: method.learn(task))

    return learn


def _seconds(trainer: Trainer, work: Callable[[], object]) -> float:
    trainer.begin_task()
    return seconds(work, trainer.device)

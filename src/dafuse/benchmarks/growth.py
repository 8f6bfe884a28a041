"""What a task costs early and late in a long stream: seconds, and bytes kept."""

from dataclasses import dataclass
from functools import partial

import torch

from dafuse.benchmarks.rounds import Goal, Measured, Row, compared
from dafuse.benchmarks.setting import (
    DEIT_TINY,
    Parts,
    Setting,
    network,
    random_images,
    short,
    world,
)
from dafuse.data.stream import Task
from dafuse.engine.training import Trainer
from dafuse.methods.daf import DAF
from dafuse.vit.weights import COMPACT

CLASSES = 2  # of a task
ALIGNING = "align"  # the phase that goes over all classes seen
FLAT = Goal("ratio", most=1.1)  # a tenth is within what the seconds of a task vary by
SAME = Goal("ratio", most=1.0)


@dataclass(frozen=True)
class Sizes:
    tag: str
    tasks: int
    looked_at: tuple[int, ...]  # numbers of tasks
    per_class: int
    epochs: int
    align_epochs: int
    around: int = 5  # tasks whose median stands for the one in their middle


SIZES = {
    "gpu": Sizes(DEIT_TINY, 100, (1, 10, 50, 100), 48, 4, 5),
    "cpu": Sizes(COMPACT, 100, (1, 10, 50, 100), 5, 1, 5),
    "quick": Sizes(COMPACT, 3, (1, 3), 2, 1, 1, around=1),
}


@dataclass
class Cost:
    """Of one task."""

    task: float  # seconds of training, Fisher, fusion, statistics
    aligning: float
    modules: int  # bytes
    per_class: float  # bytes kept for each class seen so far
    peak: int  # bytes of the GPU's memory


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    tag = setting.backbone or sizes.tag
    return {short(tag): partial(_measure, setting, sizes, tag)}


def _measure(setting: Setting, sizes: Sizes, tag: str) -> list[Row]:
    dataset = random_images(sizes.tasks * CLASSES, sizes.per_class)
    trainer, stream = world(network(tag), dataset, CLASSES, setting.fabric())

    def method() -> DAF:
        return DAF(trainer=trainer, epochs=sizes.epochs, align_epochs=sizes.align_epochs)

    before, daf = method(), method()
    for task in list(stream)[:2]:
        before.learn(task)  # to warm up
    costs = []
    with setting.progress.bar(f"growth {short(tag)}", sizes.tasks) as bar:
        for task in stream:
            costs.append(_cost(trainer, daf, task))
            bar.advance()
    return _rows(sizes, costs, trainer.device)


def _cost(trainer: Trainer, method: DAF, task: Task) -> Cost:
    trainer.begin_task()
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    method.learn(task)
    took, kept = dict(trainer.seconds), method.kept_bytes()
    aligning, modules = took.pop(ALIGNING, 0.0), kept.pop("modules")
    on_gpu = trainer.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(trainer.device) if on_gpu else 0
    return Cost(sum(took.values()), aligning, modules, sum(kept.values()) / task.seen, peak)


def _rows(sizes: Sizes, costs: list[Cost], device: torch.device) -> list[Row]:
    kinds = [
        ("task", "s", FLAT, "training to statistics"),
        ("aligning", "s", None, "alignment of all classes seen"),
        ("modules", "B", SAME, "adapters kept"),
        ("per_class", "B", SAME, "kept for each class"),
    ]
    if device.type == "cuda":
        kinds.append(("peak", "B", None, "peak of the device's memory"))
    rows = []
    for field, unit, goal, what in kinds:
        first: tuple[str, Measured] | None = None
        for number in sizes.looked_at:
            found = Measured([float(getattr(cost, field)) for cost in _near(costs, number, sizes)])
            label = f"{what}, task {number}"
            rows.append(compared(label, unit, found, first, "share", goal if first else None))
            if field != "aligning" or number > 1:  # the first task is not aligned
                first = first or (f"task {number}", found)
    return rows


def _near(costs: list[Cost], number: int, sizes: Sizes) -> list[Cost]:
    """Of the tasks around this one; at the ends of the stream, of those there are."""
    start = min(max(0, number - 1 - sizes.around // 2), len(costs) - sizes.around)
    return costs[start : start + sizes.around]

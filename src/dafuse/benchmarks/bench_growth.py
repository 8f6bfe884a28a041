"""The cost of a task early and late in a long stream: seconds, and bytes kept."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
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
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.methods.daf import DAF

CLASSES = 2  # in each task
ALIGNING = "align"  # the phase that goes over all seen classes
FLAT = Goal("ratio", most=1.1)  # a tenth is within the noise of a task's seconds
SAME = Goal("ratio", most=1.0)


@dataclass(frozen=True)
class GrowthSizes:
    tag: str
    looked_at: tuple[int, ...]  # numbers of the tasks to measure
    per_class: int
    epochs: int
    align_epochs: int = 30


SIZES = {
    "gpu": GrowthSizes(DEIT_TINY, (1, 10, 50, 100), 48, 4),
    "cpu": GrowthSizes(COMPACT, (1, 10, 50, 100), 10, 2),
    "quick": GrowthSizes(COMPACT, (1, 3), 2, 1, align_epochs=1),
}


@dataclass
class TaskCost:
    """The cost of one task."""

    seconds: float  # of training, Fisher, fusion, statistics
    aligning: float
    modules: int  # bytes
    per_class: float  # bytes kept for each class seen so far
    peak: int  # bytes of the GPU's memory


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    tag = setting.backbone or sizes.tag
    return {short(tag): partial(_measure, setting, sizes, tag)}


def _measure(setting: Setting, sizes: GrowthSizes, tag: str) -> list[BenchRow]:
    """Go through the stream once, then learn the tasks to measure in turn, each from its state."""
    tasks = max(sizes.looked_at)
    dataset = random_images(tasks * CLASSES, sizes.per_class)
    trainer, stream = world(network(tag), dataset, CLASSES, setting.fabric())
    method = DAF(trainer=trainer, rule="last", epochs=1, align_epochs=0)  # the fastest way through
    states: dict[int, dict[str, Tensor]] = {}
    with setting.progress.bar(f"stream {short(tag)}", tasks) as bar:
        for task in stream:
            if task.number in sizes.looked_at:
                states[task.number] = method.state()
            method.learn(task)
            bar.advance()
    method.rule, method.epochs, method.align_epochs = "dynamic", sizes.epochs, sizes.align_epochs
    costs: dict[int, list[TaskCost]] = {number: [] for number in states}

    def learn(number: int) -> float:
        method.load_state(states[number])
        costs[number].append(_cost(trainer, method, stream[number - 1]))
        return costs[number][-1].seconds

    variants = {f"task {number}": partial(learn, number) for number in states}
    found = setting.alternate(variants, f"growth {short(tag)}", warm_up=tuple(variants))
    for name, measured in found.items():
        if measured.error:
            raise DafuseError(f"{name}: {measured.error}")
    costs = {number: measured[1:] for number, measured in costs.items()}
    return _rows(costs, trainer.device, judged=not setting.quick)


def _cost(trainer: Trainer, method: DAF, task: Task) -> TaskCost:
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    trainer.begin_task()
    method.learn(task)
    peak = torch.cuda.max_memory_allocated(trainer.device) if on_gpu else 0
    took, kept = dict(trainer.seconds), method.kept_bytes()
    aligning, modules = took.pop(ALIGNING, 0.0), kept.pop("modules")
    return TaskCost(sum(took.values()), aligning, modules, sum(kept.values()) / task.seen, peak)


def _rows(costs: dict[int, list[TaskCost]], device: torch.device, judged: bool) -> list[BenchRow]:
    kinds: list[tuple[str, str, Goal | None, str]] = [
        ("seconds", "s", FLAT, "training to statistics"),
        ("aligning", "s", None, "alignment of all classes seen"),
        ("modules", "B", SAME, "adapters kept"),
        ("per_class", "B", SAME, "kept for each class"),
    ]
    if device.type == "cuda":
        kinds.append(("peak", "B", None, "peak of the device's memory"))
    rows = []
    for field, unit, goal, what in kinds:
        # nothing is aligned after the first task
        numbers = [number for number in costs if field != "aligning" or number > 1]
        found = {n: Measured([float(getattr(c, field)) for c in costs[n]]) for n in numbers}
        base = f"task {numbers[0]}", found[numbers[0]]
        for number in numbers:
            first = number == numbers[0]
            details = (None, "share", None) if first else (base, "share", goal if judged else None)
            rows.append(compared(f"{what}, task {number}", unit, found[number], *details))
    return rows

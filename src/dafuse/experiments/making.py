"""Making the steps of an experiment: one after the other here, or several at a time elsewhere.

Steps that are finished are taken as they are, those begun go on; one that fails does not take the
others down.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Protocol

from dafuse.engine.config import RunConfig
from dafuse.engine.run import Bench, prepare
from dafuse.errors import DafuseError
from dafuse.experiments.declared import MEASUREMENT
from dafuse.experiments.steps_table import StepsTable
from dafuse.progress import Progress

if TYPE_CHECKING:
    from dafuse.experiments.few_images import FewImages
    from dafuse.experiments.measurement import Measurement
    from dafuse.experiments.plan import PlannedRun

    Step = PlannedRun | Measurement | FewImages

# options that a bench is made of
OF_BENCH = (
    *("data", "backbone", "normalize", "weights", "weights_sha256"),
    *("device", "precision", "deterministic", "workers", "memory_gb"),
)


class LastBench:
    """The bench that was prepared last, for the steps that can share it."""

    def __init__(self) -> None:
        self._made: tuple[dict[str, object], Bench] | None = None

    def of(self, config: RunConfig, progress: Progress) -> Bench:
        needed = _bench_options(config)
        if self._made is None or self._made[0] != needed:
            self._made = None  # its memory is free before other images are decoded
            self._made = needed, prepare(config, progress)
        return self._made[1]


def _bench_options(config: RunConfig) -> dict[str, object]:
    return {key: value for key, value in asdict(config).items() if key in OF_BENCH}


def name_of(step: "Step") -> str:
    return f"{step.label}, seed {step.config.seed}"


def count_of(steps: "Sequence[Step]") -> str:
    if any(step.label == MEASUREMENT for step in steps):
        return f"{len(steps)} runs and measurements"
    return "1 run" if len(steps) == 1 else f"{len(steps)} runs"


def make_in_turn(steps: "Sequence[Step]", progress: Progress) -> list[str]:
    """Make every step that is not finished. Returns what failed, and why."""
    failed: list[str] = []
    benches, last = list[dict[str, object]](), LastBench()
    for step in steps:
        if (needed := _bench_options(step.config)) not in benches:
            benches.append(needed)
    recorders_first = sorted(
        steps,
        key=lambda step: (
            benches.index(_bench_options(step.config)),  # each is prepared once
            step.config.replay is not None,
        ),
    )
    for number, step in enumerate(recorders_first, 1):
        progress.say(f"--- {number}/{len(steps)}: {name_of(step)}")
        if step.finished():
            progress.say(f"{step.folder} is finished; nothing to compute")
            continue
        if len(benches) == 1:
            last.of(step.config, progress)  # what is wrong with it is wrong for all
        try:
            step.make(progress, last.of(step.config, progress))
        except Exception as error:  # the others are worth having all the same
            why = in_words(error)
            failed.append(f"{name_of(step)} ({why})")
            progress.say(f"failed: {why}")
    return failed


def in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, DafuseError) else f"{type(error).__name__}: {error}"


class Workers(Protocol):
    """Processes that make steps."""

    retries: int  # how often a step that failed is to be submitted again

    def submit(self, step: "Step") -> "Future[str] | None":
        """Begin to make a step; None if no process is free. The result says why it cannot be made.

        The future has an exception where the process died, or the step failed for another reason
        than its input.
        """

    def in_words(self, error: BaseException) -> str:
        """Say in a line why a step failed."""


def make_together(steps: "Sequence[Step]", workers: Workers, table: StepsTable) -> list[str]:
    """Make every step that is not finished, several at a time. Returns what failed, and why.

    A step begins when those whose record it needs have ended.
    """
    order = TopologicalSorter(_needed(steps))
    order.prepare()
    waiting: list[int] = []
    running: dict[Future[str], int] = {}
    tries, failed = Counter[int](), dict[int, str]()
    while order.is_active():
        waiting += order.get_ready()
        _begin(steps, waiting, running, workers, table, order)
        ended, _ = wait(running, table.every, FIRST_COMPLETED) if running else ([], None)
        for future in ended:
            number = running.pop(future)
            error = future.exception()
            why = future.result() if error is None else workers.in_words(error)
            tries[number] += 1
            if error is not None and tries[number] <= workers.retries:
                table.say(f"{name_of(steps[number])} failed ({why}): once more")
                table.state[number] = "again"
                waiting.insert(0, number)
                continue
            table.state[number] = "failed" if why else "finished"
            if why:
                failed[number] = f"{name_of(steps[number])} ({why})"
                table.say(f"failed: {failed[number]}")
            order.done(number)
        table.refresh()
    return [failed[number] for number in sorted(failed)]


def _begin(
    steps: "Sequence[Step]",
    waiting: list[int],
    running: "dict[Future[str], int]",
    workers: Workers,
    table: StepsTable,
    order: "TopologicalSorter[int]",
) -> None:
    """Submit waiting steps as long as workers take them; pass over finished ones."""
    for number in list(waiting):
        if steps[number].finished():
            table.state[number] = "reused"
            order.done(number)
        elif (future := workers.submit(steps[number])) is not None:
            running[future] = number
            table.state[number] = "begun"
        else:
            continue
        waiting.remove(number)


def _needed(steps: "Sequence[Step]") -> Mapping[int, list[int]]:
    """Return, for each step, those whose record it reads: the replayed run, the measured run."""
    makers = {step.folder: k for k, step in enumerate(steps) if step.label != MEASUREMENT}
    needed: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        sources = {str(step.folder), step.config.replay or str(step.folder)}
        found = [k for folder, k in makers.items() if str(folder) in sources and k != number]
        needed[number] = found
    return needed

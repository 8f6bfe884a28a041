"""A step of an experiment that is not a run: measurements at the record of one.

The numbers go to ``approximations.json`` in that run's folder, task by task. So a measurement that
was stopped goes on, and a finished one is not repeated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dafuse.data.stream import Stream, Task
from dafuse.engine.config import RunConfig, split_name
from dafuse.engine.devices import launch
from dafuse.engine.folder import RunFolder
from dafuse.engine.provenance import provenance
from dafuse.engine.replay import Recording, require_same_inputs
from dafuse.engine.run import Bench
from dafuse.engine.streams import make_stream
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.experiments.approximations import measure_task
from dafuse.experiments.declared import MeasureOptions
from dafuse.experiments.guess import Guess
from dafuse.methods.daf import DAF
from dafuse.methods.registry import find_method
from dafuse.progress import Progress
from dafuse.report.measured_approximations import FILE, MeasuredTasks, read_measurement
from dafuse.sealed import write_sealed


@dataclass
class Measurement:
    """A step of an experiment: measurements at the record of one of its runs."""

    label: str
    config: RunConfig  # of the recorded run
    options: MeasureOptions

    @property
    def folder(self) -> Path:
        return self.config.folder()

    def finished(self) -> bool:
        return self.state() == "finished"

    def state(self) -> str:
        try:
            results = _begun(self.folder, self.options)
        except DafuseError:
            return "damaged"
        if results is None:
            return "to do"
        done, planned = len(results.tasks), len(results.planned)
        return "finished" if done == planned else f"{done} of {planned} tasks"

    def how(self) -> str:
        return f"measures {_record_of(self.config).parent.name}"

    def seconds_to_go(self) -> float | None:
        try:
            results = _begun(self.folder, self.options)
        except DafuseError:
            return None
        if results is None or not results.tasks:
            return None
        each = sum(task.seconds for task in results.tasks) / len(results.tasks)
        return each * (len(results.planned) - len(results.tasks))

    def guessed(self, guess: Guess) -> float:
        """Return the seconds, if nothing has been measured yet."""
        return guess.of_measurement(self.options)

    def make(self, progress: Progress, bench: Bench) -> None:
        measure(self.config, self.options, progress, bench)


def measure(config: RunConfig, options: MeasureOptions, progress: Progress, bench: Bench) -> Path:
    """Measure what is missing for the recorded run of this configuration; return the file."""
    stream = make_stream(config, bench.loader.dataset)
    record = _record_of(config)
    _require_record(record, len(stream))
    with RunFolder(config.folder()).open(config.asked(), config.hash()) as folder:
        path = folder.path / FILE
        fabric = launch(config.device, "fp32", config.deterministic)
        trainer = Trainer(bench.network, bench.loader, fabric, config.seed, progress)
        origin = provenance(bench.network, bench.loader, trainer.device)
        require_same_inputs(replace(config, replay=str(folder.path)), origin)
        results = _begun(folder.path, options)
        if results is None and path.is_file():
            progress.say("replacing the measurements made here with other options")
        if results is None:
            planned = spread_tasks(len(stream), options.tasks)
            results = MeasuredTasks(asdict(options), planned, origin)
        done = {task.task for task in results.tasks}
        left = [index for index in results.planned if index not in done]
        for task, method in _replayed(config, trainer, record, stream, left):
            progress.say(f"measuring task {task.number}/{len(stream)}")
            results.tasks.append(measure_task(trainer, task, method, options))
            write_sealed(path, results.as_json(), folder.path)
    return path


def spread_tasks(count: int, wanted: int) -> list[int]:
    """Return evenly spread indices of tasks, with the last; the first is usually only copied."""
    first = min(1, count - 1)
    wanted = min(wanted, count - first)
    if wanted == 1:
        return [count - 1]
    return [first + round(k * (count - 1 - first) / (wanted - 1)) for k in range(wanted)]


def _begun(folder: Path, options: MeasureOptions) -> MeasuredTasks | None:
    """Return the measurements already made with these options."""
    results = read_measurement(folder)
    return results if results is not None and results.options == asdict(options) else None


def _record_of(config: RunConfig) -> Path:
    """Return the run's own record, or the one that it replayed."""
    return (Path(config.replay) if config.replay else config.folder()) / "record"


def _require_record(record: Path, tasks: int) -> None:
    for number in range(1, tasks + 1):
        if not (record / f"training-{number:04d}.safetensors").is_file():
            raise DafuseError(
                f"{record.parent} has no record of task {number} to measure at: "
                "it must be a finished run with --record"
            )


def _replayed(
    config: RunConfig, trainer: Trainer, record: Path, stream: Stream, wanted: Sequence[int]
) -> Iterator[tuple[Task, DAF]]:
    """Yield the method after each wanted task, with its θ_t and θ*_t as in the run."""
    name, own = split_name(config.method)
    own["align_epochs"] = 0  # the classifier is not used
    method = find_method(name)(trainer=trainer, **own)
    if not isinstance(method, DAF):
        raise DafuseError(f"the method {method.name} does not fuse adapters: nothing to measure")
    Recording(record, None, trainer.ranks).wrap(method)
    for task in list(stream)[: max(wanted, default=-1) + 1]:
        method.learn(task)
        if task.index in wanted:
            yield task, method

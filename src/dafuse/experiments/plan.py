"""From an experiment to its steps: where each run lies, what it can replay, how far it is."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from dafuse.engine.config import RunConfig
from dafuse.engine.run import Bench, resolved, run
from dafuse.engine.tape import training_part
from dafuse.errors import DafuseError
from dafuse.experiments.declared import Experiment, MeasureOptions, Options
from dafuse.experiments.measurement import Measurement
from dafuse.methods.registry import find_method, with_defaults
from dafuse.progress import Progress
from dafuse.report.runs import NoResultsYet, RunResult, load_run


@dataclass
class Planned:
    """A run of an experiment."""

    label: str
    config: RunConfig

    @property
    def folder(self) -> Path:
        return self.config.folder()

    def found(self) -> RunResult | None:
        """What it has given so far."""
        try:
            return load_run(self.folder) if (self.folder / "config.json").is_file() else None
        except NoResultsYet:
            return None

    def finished(self) -> bool:
        return self.state() == "finished"

    def state(self) -> str:
        """How far it is."""
        found = self.found()
        return "to do" if found is None else found.mark or "finished"

    def how(self) -> str:
        if self.config.replay:
            return f"replays {Path(self.config.replay).name}"
        return "records" if self.config.record else ""

    def make(self, progress: Progress, bench: Bench) -> None:
        run(self.ready(), progress, bench)

    def ready(self) -> RunConfig:
        """Its configuration, without a replay of a run that left no record."""
        source = self.config.replay
        if source is None or (Path(source) / "record").is_dir():
            return self.config
        return replace(self.config, replay=None, record=True)


def plan(
    experiment: Experiment, base: RunConfig, seeds: Sequence[int], out: Path, common: Options
) -> list[Planned]:
    """Every run of the experiment. Of those that train the same way one records, for all.

    ``common`` are options for each method that has them, such as fewer epochs.
    """
    unused = {key for key in common if not any(key in _options_of(r) for r in experiment.runs)}
    if unused:
        raise DafuseError(
            f"no method of this experiment has the option {', '.join(sorted(unused))}"
        )
    planned: list[Planned] = []
    recorders = dict(_finished_records(out))
    for seed, options in ((seed, options) for seed in seeds for options in experiment.runs):
        own = {k: v for k, v in common.items() if k in _options_of(options)} | options
        config = resolved(replace(base, method=own, seed=seed))
        folder = out / config.name()
        config = replace(config, out=str(folder))
        if find_method(own["name"]).after_training:
            training = _training(config)
            if _finished(folder) is None or (folder / "record").is_dir():
                recorders.setdefault(training, folder)
            recorder = recorders.get(training, folder)
            other = None if recorder == folder else str(recorder)
            config = replace(config, replay=other, record=other is None)
        planned.append(Planned(_label(options), config))
    return planned


def _finished_records(out: Path) -> Iterator[tuple[str, Path]]:
    """What training each finished run in this folder recorded, and where."""
    for record in sorted(out.glob("*/record")):
        if found := _finished(record.parent):
            yield _training(RunConfig(**found.config)), found.folder


def _finished(folder: Path) -> RunResult | None:
    """The run in this folder, if it is at its end and can be read."""
    try:
        found = load_run(folder)
    except DafuseError:
        return None
    return None if found.mark else found


def _training(config: RunConfig) -> str:
    return json.dumps(training_part(config), sort_keys=True)


def measurements(
    experiment: Experiment, planned: Sequence[Planned], options: MeasureOptions
) -> list[Measurement]:
    """What is measured once the runs are there: at the first one's record, for each seed."""
    if not experiment.measures:
        return []
    first: dict[int, Planned] = {}
    for each in planned:
        first.setdefault(each.config.seed, each)
    return [Measurement("measurement", each.config, options) for each in first.values()]


def estimates(planned: Sequence[Planned]) -> Iterator[float | None]:
    """Seconds each run will still take, from finished ones of its method and kind, if any."""
    took: dict[tuple[str, bool], list[float]] = {}
    results = [each.found() for each in planned]
    finished = [found is not None and not found.mark for found in results]
    for each, found, done in zip(planned, results, finished, strict=True):
        if found is not None and done:
            seconds = sum(sum(task["seconds"].values()) for task in found.tasks)
            took.setdefault(_kind(each), []).append(seconds)
    for each, done in zip(planned, finished, strict=True):
        known = took.get(_kind(each))
        yield 0.0 if done else fmean(known) if known else None


def _kind(run: Planned) -> tuple[str, bool]:
    return run.config.method["name"], run.config.replay is not None


def _options_of(options: Options) -> Options:
    return with_defaults(options["name"], {})


def _label(options: Options) -> str:
    varied = [f"{key}-{value}" for key, value in options.items() if key != "name"]
    return "-".join([options["name"], *varied]).replace("_", "-")

"""The steps of an experiment: the folder of each run, what it can replay, its state."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from dafuse.backbones.load import find_backbone
from dafuse.data.stream import class_order, task_sizes
from dafuse.engine.config import (
    NOT_IN_HASH,
    STREAM_OPTIONS,
    STREAMS,
    RunConfig,
    flatten,
    saved_config,
)
from dafuse.engine.devices import describe, launch
from dafuse.engine.replay import training_part
from dafuse.engine.run import Bench, resolved, run
from dafuse.errors import DafuseError
from dafuse.experiments.declared import MEASUREMENT, Experiment, MeasureOptions, Options
from dafuse.experiments.guess import Guess
from dafuse.experiments.measurement import Measurement
from dafuse.methods.registry import find_method, with_defaults
from dafuse.progress import Progress
from dafuse.report.runs import NoResultsYet, RunResult, load_run


@dataclass
class PlannedRun:
    """A run of an experiment."""

    label: str
    config: RunConfig

    @property
    def folder(self) -> Path:
        return self.config.folder()

    def results(self) -> RunResult | None:
        """Return its results so far, if they can be read."""
        try:
            return self._read()
        except DafuseError:
            return None

    def finished(self) -> bool:
        return self.state() == "finished"

    def state(self) -> str:
        """Say how far it is."""
        try:
            found = self._read()
        except DafuseError:
            return "damaged"
        return "to do" if found is None else found.mark or "finished"

    def how(self) -> str:
        """Say what it replays from another run, or records for others."""
        if self.config.replay:
            return f"replays {Path(self.config.replay).name}"
        return "records" if self.config.record else ""

    def guessed(self, guess: Guess) -> float:
        """Return the seconds, if no run like it is finished."""
        return guess.of_run(self.config)

    def make(self, progress: Progress, bench: Bench) -> None:
        self._read()  # what is damaged is refused before anything is computed
        run(self.ready(), progress, bench)

    def ready(self) -> RunConfig:
        """Return its configuration, without the replay of a run that left no record."""
        source = self.config.replay
        if source is None or (Path(source) / "record").is_dir():
            return self.config
        return replace(self.config, replay=None, record=True)

    def _read(self) -> RunResult | None:
        try:
            return load_run(self.folder) if (self.folder / "config.json").is_file() else None
        except NoResultsYet:
            return None


def plan(
    experiment: Experiment, base: RunConfig, seeds: Sequence[int], out: Path, common: Options
) -> list[PlannedRun]:
    """Return every run of the experiment. Among those that train the same way, one records.

    ``common`` are options for each method that has them, such as fewer epochs.
    """
    _require_asked_for(experiment, common)
    _require_left_to(experiment, base)
    _require_possible(base, seeds)
    planned: list[PlannedRun] = []
    for seed, setting, options in product(
        dict.fromkeys(seeds), experiment.settings, experiment.runs
    ):
        own = {k: v for k, v in common.items() if k in _options_of(options)} | options
        config = resolved(replace(_in_setting(base, setting), method=own, seed=seed))
        label = _label({**options, **setting})
        planned.append(PlannedRun(label, replace(config, out=str(out / config.name()))))
    return recorded_once(planned, out)


def plan_grid(configs: Sequence[RunConfig], out: Path) -> list[PlannedRun]:
    """Return the runs of these configurations, each once, labelled by what they differ in."""
    everything = [resolved(config) for config in configs]
    flat = [flatten(config.asked()) for config in everything]
    planned: dict[Path, PlannedRun] = {}
    for config, own in zip(everything, flat, strict=True):
        _require_possible(config, [config.seed])
        config = replace(config, out=str(out / config.name()))
        label = _label({"name": config.method["name"], **_varied(own, flat)})
        planned.setdefault(config.folder(), PlannedRun(label, config))
    return recorded_once(list(planned.values()), out)


def _varied(own: Options, everything: Sequence[Options]) -> Options:
    """Return the options in which the others differ; those of a method among its runs alone."""
    varied = {}
    for key, value in own.items():
        kind = f"{key.partition('.')[0]}.name"
        peers = [other for other in everything if other.get(kind) == own.get(kind)]
        compared = everything if key == "data.name" else peers
        if key in ("seed", "method.name", *NOT_IN_HASH):
            continue
        if any(other.get(key) != value for other in compared):
            varied[key.removeprefix("method.")] = value
    return varied


def recorded_once(planned: list[PlannedRun], out: Path) -> list[PlannedRun]:
    """Have one of the runs that train the same way record, and the others replay it."""
    recorders = _recorders(planned, out)
    for each in planned:
        if _records(each.config):
            recorder = recorders.get(_training(each.config), each.folder)
            other = None if recorder == each.folder else str(recorder)
            each.config = replace(each.config, replay=other, record=other is None)
    return planned


def _in_setting(base: RunConfig, setting: Options) -> RunConfig:
    """Return the configuration with these options; options of other streams are dropped."""
    if "stream" not in setting:
        return replace(base, **setting)
    usual, own = RunConfig(), STREAMS[setting["stream"]]
    others = {key: getattr(usual, key) for key in STREAM_OPTIONS if key not in own}
    return replace(base, **{**others, **setting})


def _recorders(planned: Sequence[PlannedRun], out: Path) -> dict[str, Path]:
    """Return, for each kind of training, the folder of its record: the run with most defaults.

    Other experiments use that run too, and its speed is the interesting one.
    """
    recorders = dict(_finished_records(out))
    able = [each for each in planned if _records(each.config)]
    for each in sorted(able, key=lambda each: _changes(each.config)):
        if (each.folder / "record").is_dir() or _finished(each.folder) is None:
            recorders.setdefault(_training(each.config), each.folder)
    return recorders


def _records(config: RunConfig) -> bool:
    return bool(find_method(config.method["name"]).after_training)


def _changes(config: RunConfig) -> int:
    """Count the options that act after training and are not at their default."""
    usual = _options_of(config.method)
    changeable = find_method(config.method["name"]).after_training
    return sum(config.method[key] != usual[key] for key in changeable)


def _require_asked_for(experiment: Experiment, common: Options) -> None:
    """Refuse common options that no method has, and those that the experiment decides."""
    unused = {key for key in common if not any(key in _options_of(r) for r in experiment.runs)}
    if unused:
        raise DafuseError(
            f"no method of this experiment has the option {', '.join(sorted(unused))}"
        )
    for key in common:
        if any(key in options for options in experiment.runs):
            raise DafuseError(f"this experiment chooses {key} itself: leave --method.{key} out")


def _require_left_to(experiment: Experiment, base: RunConfig) -> None:
    """Refuse options of runs that the experiment decides."""
    usual = RunConfig()
    for key in dict.fromkeys(key for setting in experiment.settings for key in setting):
        if getattr(base, key) != getattr(usual, key):
            raise DafuseError(f"this experiment chooses {key} itself: leave --{key} out")


def _require_possible(base: RunConfig, seeds: Sequence[int]) -> None:
    """Refuse what is known to be wrong before data and weights are read."""
    if base.devices * base.nodes > 1:
        raise DafuseError("one of several runs takes one device: leave --devices and --nodes out")
    find_backbone(base.backbone)
    for seed in seeds:
        class_order(1, base.order, seed)
    if isinstance(base.increment, int):
        task_sizes(max(base.increment, 1), base.increment)


def _finished_records(out: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind of training of each finished run in this folder, and its record."""
    for record in sorted(out.glob("*/record")):
        if found := _finished(record.parent):
            try:
                training = _training(saved_config(found.config.everything, found.folder))
            except DafuseError:  # of another version: nothing to take from it
                continue
            yield training, found.folder


def _finished(folder: Path) -> RunResult | None:
    """Return the run in this folder, if it is finished and can be read."""
    try:
        found = load_run(folder)
    except DafuseError:
        return None
    return None if found.mark else found


def _training(config: RunConfig) -> str:
    return json.dumps(training_part(config), sort_keys=True)


def measurements(
    experiment: Experiment, planned: Sequence[PlannedRun], options: MeasureOptions
) -> list[Measurement]:
    """Return the measurements at the first run's record, for each seed."""
    if not experiment.measures:
        return []
    first: dict[int, PlannedRun] = {}
    for each in planned:
        first.setdefault(each.config.seed, each)
    return [Measurement(MEASUREMENT, each.config, options) for each in first.values()]


def estimates(planned: Sequence[PlannedRun], out: Path) -> Iterator[float | None]:
    """Yield the seconds that each run still takes, from its own tasks or from finished runs."""
    took: dict[str, list[float]] = {}
    for results in out.glob("*/results.json"):
        if found := _finished(results.parent):
            device = found.provenance.device
            took.setdefault(_kind(found.config.everything, device), []).append(found.seconds)
    here = _device_here(planned[0].config)
    for each in planned:
        begun, known = each.results(), took.get(_kind(each.config.asked(), here))
        if begun is not None:
            done, total = len(begun.matrix), begun.tasks_total
            yield begun.seconds / done * (total - done)
        elif each.state() == "damaged":
            yield None
        else:
            yield median(known) if known else None


def _kind(config: dict[str, Any], device: str) -> str:
    """Return the kind of a run; runs of one kind take about the same time."""
    chip = device if device.startswith("cuda") else device.partition(" ")[0]  # without threads
    same = [config.get(key) for key in ("data", "backbone", "increment", "stream", "precision")]
    own = [config["method"].get(key) for key in ("name", "epochs", "batch_size", "align_epochs")]
    return json.dumps([chip, *same, *own, config.get("replay") is not None], sort_keys=True)


def _device_here(config: RunConfig) -> str:
    """Name the device as a run would; "" if the chosen one is missing."""
    try:
        return describe(launch(config.device, config.precision, deterministic=False).device)
    except DafuseError:
        return ""


def _options_of(options: Options) -> Options:
    return with_defaults(options["name"], {})


def _label(options: Options) -> str:
    varied = [f"{key}-{value}" for key, value in options.items() if key != "name"]
    return "-".join([options["name"], *varied]).replace("_", "-")

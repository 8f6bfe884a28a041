"""The settings of runs: which differ in their seed only, their names, the commands to repeat them.

A setting is all of a run's configuration but its seed. A recipe asks for one, too.
"""

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dafuse.data.registry import DATASETS, with_defaults
from dafuse.engine.config import NOT_IN_HASH, STREAM_OPTIONS, RunConfig, flatten
from dafuse.report.runs import RunResult

COMPARED = (  # beside method and data
    *("backbone", "normalize", "increment", "order", "seed"),
    *("stream", *STREAM_OPTIONS),
)
PLACES = ("root", "file")  # options of data that say where it lies
USUAL = RunConfig()


@dataclass
class SeedGroup:
    """Runs that are equal in everything but the seed, under the name that tells them apart.

    Each other way to predict that a run recorded is a group of its own, below the run's.
    """

    name: str
    runs: list[RunResult]

    @property
    def label(self) -> str:
        """The name, with how far its runs are where they are not at their end."""
        mark = self.runs[0].mark
        return f"{self.name}, {mark}" if mark else self.name

    def title(self, run: RunResult) -> str:
        """The name of one run of the group."""
        return f"{self.name}, seed {run.config.seed}" if len(self.runs) > 1 else self.name


def group_runs(runs: Iterable[RunResult]) -> list[SeedGroup]:
    """Group the runs that differ only in their seed, in the order in which they come.

    The number of finished tasks counts as a difference, since averages over fewer tasks are higher.
    """
    runs = list(runs)
    groups: dict[str, SeedGroup] = {}
    for run, name in zip(runs, _names(runs), strict=True):
        for view in run.views():
            key = json.dumps([len(view.matrix), view.prediction, options_of(view)], sort_keys=True)
            way = f" [{view.prediction}]" if view.prediction else ""
            groups.setdefault(key, SeedGroup(name + way, [])).runs.append(view)
    return list(groups.values())


def _names(runs: list[RunResult]) -> list[str]:
    """Return names that no two settings share, without defaults if possible."""
    everything = [options_of(run) for run in runs]
    settings = [json.dumps(options, sort_keys=True) for options in everything]
    defaults = [flatten({"method": run.declared.defaults or {}}) for run in runs]
    names = [_name(own, everything, usual) for own, usual in zip(everything, defaults, strict=True)]
    shared = _shared(names, settings)
    names = [  # runs of two versions of a method may both be at their defaults
        _name(own, everything, {}) if name in shared else name
        for own, name in zip(everything, names, strict=True)
    ]
    shared = _shared(names, settings)  # by long values that were cut
    return [
        f"{name} #{shared[name].index(own) + 1}" if name in shared else name
        for own, name in zip(settings, names, strict=True)
    ]


def _shared(names: list[str], settings: list[str]) -> dict[str, list[str]]:
    """Return the names that stand for several settings, and these settings."""
    meant: defaultdict[str, list[str]] = defaultdict(list)
    for name, own in zip(names, settings, strict=True):
        if own not in meant[name]:
            meant[name].append(own)
    return {name: several for name, several in meant.items() if len(several) > 1}


def _name(
    options: dict[str, Any], everything: list[dict[str, Any]], defaults: dict[str, Any]
) -> str:
    """Return the method's name, and the settings in which it differs from what it is compared with.

    Settings at their default are left out. So are those that most of the runs share, beside method,
    data and backbone. A stream without tasks is always named.
    """
    differences = []
    for key, value in options.items():
        section, _, option = key.partition(".")
        peers, kind = everything, f"{section}.name"
        if section in ("method", "data"):  # another method or data set need not have this option
            peers = [
                other for other in everything if key == kind or other.get(kind) == options.get(kind)
            ]
        elif key in STREAM_OPTIONS:
            peers = [other for other in everything if other["stream"] == options["stream"]]
        if key == "stream":
            differences += [] if value == "tasks" else [value]
            continue
        if key == "method.name" or all(other.get(key) == value for other in peers):
            continue
        if key in defaults and defaults[key] == value:
            continue
        agreeing = sum(other.get(key) == value for other in everything)
        if section not in ("method", "data", "backbone") and agreeing > len(everything) / 2:
            continue
        if key in ("data.name", "backbone"):
            differences.append(str(value))
        else:
            differences.append(f"{option if section == 'method' else key}={_short(value)}")
    method = options["method.name"]
    return f"{method} ({', '.join(differences)})" if differences else method


def options_of(run: RunResult) -> dict[str, Any]:
    """Return the config without the seed and what cannot change a result."""
    ignored = ("seed", *NOT_IN_HASH)
    options = {**run.config.flat(), "stream": run.config.stream}
    return {key: value for key, value in options.items() if key not in ignored}


def differing_options(runs: Iterable[RunResult]) -> list[str]:
    """Return the options in which the runs differ, in the order of the configuration."""
    options = [options_of(run) for run in runs]
    keys = dict.fromkeys(key for own in options for key in own)
    return [key for key in keys if len({str(own.get(key)) for own in options}) > 1]


def changed_options(run: RunResult) -> dict[str, Any]:
    """The method's options that are not at their default; all, where the defaults are unknown."""
    defaults = run.declared.defaults or {}
    return {
        key: value
        for key, value in run.config.options.items()
        if key not in defaults or defaults[key] != value
    }


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 32 else text[:31] + "…"


@dataclass(frozen=True)
class Recipe:
    """A recipe: its options, and the result that it should have."""

    name: str
    asked: dict[str, Any]  # as `dafuse run` reads it
    expected: dict[str, Any]  # average, final, source, and the way to predict where it matters

    def setting(self, key: str) -> Any:
        return self.asked.get(key, getattr(USUAL, key))

    def is_of(self, run: RunResult) -> bool:
        """Tell whether the run is of this very setting."""
        defaults = run.declared.defaults
        if defaults is None or self.asked["method"]["name"] != run.config.method:
            return False
        changed = {
            key: value
            for key, value in self.asked["method"].items()
            if key != "name" and defaults.get(key) != value
        }
        return (
            changed == changed_options(run)
            and self.asked["data"]["name"] == run.config.data["name"]
            and _without_places(self.asked["data"]) == _without_places(run.config.data)
            and all(self.setting(key) == setting(run, key) for key in COMPARED)
        )


def setting(run: RunResult, key: str) -> Any:
    return run.config.everything.get(key, getattr(USUAL, key))


def changed_data(data: dict[str, Any]) -> dict[str, Any]:
    """The options of a data source that are not at their default."""
    usual = with_defaults(data["name"], {}) if data["name"] in DATASETS else {}
    return {k: v for k, v in data.items() if k != "name" and (k not in usual or usual[k] != v)}


def data_name(data: dict[str, Any]) -> str:
    """Return the source's name (with the file or folder of own data) and changed options."""
    changed = changed_data(data)
    places = [Path(str(changed.pop(key))).name for key in PLACES if key in changed]
    own = f" {places[0]}" if places and data["name"] in ("folder", "table", "arrays") else ""
    return named(data["name"] + own, changed)


def stream_name(run: RunResult) -> str:
    """The kind of a stream without tasks and its changed options; "" of a run in tasks."""
    changed = {
        key: setting(run, key) for key in STREAM_OPTIONS if setting(run, key) != getattr(USUAL, key)
    }
    return "" if run.config.stream == "tasks" else named(f"{run.config.stream} stream", changed)


def comparable(runs: Iterable[RunResult]) -> bool:
    """Tell whether accuracies compare: one data set, stream and backbone."""
    different = {
        (data_name(run.config.data), stream_name(run), run.config.backbone) for run in runs
    }
    return len(different) <= 1


def named(name: str, options: dict[str, Any]) -> str:
    spelled = ", ".join(f"{key}={_spelled(value)}" for key, value in options.items())
    return f"{name} ({spelled})" if spelled else name


def command_of(run: RunResult) -> str:
    """A command that makes this run again; it says what is not at its default."""
    data = run.config.data
    options: dict[str, Any] = {"method": run.config.method}
    options |= {f"method.{key}": value for key, value in changed_options(run).items()}
    options |= {"data": data["name"]}
    options |= {f"data.{key}": value for key, value in changed_data(data).items()}
    for key, value in run.config.everything.items():
        if key in ("method", "data", *NOT_IN_HASH):
            continue
        if key in ("increment", "seed") or value != getattr(USUAL, key, None):
            options[key] = value
    words = [f"--{key}={_spelled(value)}" for key, value in options.items()]
    return shlex.join(["dafuse", "run", *words])


def _without_places(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changed_data(data).items() if key not in PLACES}


def _spelled(value: Any) -> str:
    """Return the value as the command line reads it."""
    return value if isinstance(value, str) else json.dumps(value)

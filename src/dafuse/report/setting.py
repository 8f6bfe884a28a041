"""What a run was asked for: spelled out as a command, and compared with what a recipe asks for."""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dafuse.data.registry import DATASETS, with_defaults
from dafuse.engine.config import NOT_IN_HASH, STREAM_OPTIONS, RunConfig
from dafuse.report.groups import changed_options
from dafuse.report.runs import RunResult

COMPARED = (  # beside method and data
    *("backbone", "normalize", "increment", "order", "seed"),
    *("stream", *STREAM_OPTIONS),
)
PLACES = ("root", "file")  # options of data that say where it lies
USUAL = RunConfig()


@dataclass(frozen=True)
class Recipe:
    """What a recipe asks for, and what it should give."""

    name: str
    asked: dict[str, Any]  # as `dafuse run` reads it
    expected: dict[str, Any]  # average, final, source, and the way to predict where it matters

    def setting(self, key: str) -> Any:
        return self.asked.get(key, getattr(USUAL, key))

    def is_of(self, run: RunResult) -> bool:
        """Whether the run is of this very setting."""
        defaults = run.results.get("method", {}).get("defaults")
        if defaults is None or self.asked["method"]["name"] != run.method:
            return False
        changed = {
            key: value
            for key, value in self.asked["method"].items()
            if key != "name" and defaults.get(key) != value
        }
        return (
            changed == changed_options(run)
            and self.asked["data"]["name"] == run.config["data"]["name"]
            and _without_places(self.asked["data"]) == _without_places(run.config["data"])
            and all(self.setting(key) == setting(run, key) for key in COMPARED)
        )


def setting(run: RunResult, key: str) -> Any:
    return run.config.get(key, getattr(USUAL, key))


def changed_data(data: dict[str, Any]) -> dict[str, Any]:
    """The options of a data source that are not at their default."""
    usual = with_defaults(data["name"], {}) if data["name"] in DATASETS else {}
    return {k: v for k, v in data.items() if k != "name" and (k not in usual or usual[k] != v)}


def data_name(data: dict[str, Any]) -> str:
    """The source's name, of one's own data with the file's or folder's, and changed options."""
    changed = changed_data(data)
    places = [Path(str(changed.pop(key))).name for key in PLACES if key in changed]
    own = f" {places[0]}" if places and data["name"] in ("folder", "table", "arrays") else ""
    return named(data["name"] + own, changed)


def stream_name(run: RunResult) -> str:
    """The kind of a stream without tasks and its changed options; "" of a run in tasks."""
    changed = {
        key: setting(run, key) for key in STREAM_OPTIONS if setting(run, key) != getattr(USUAL, key)
    }
    return "" if run.stream == "tasks" else named(f"{run.stream} stream", changed)


def comparable(runs: Iterable[RunResult]) -> bool:
    """Whether accuracies compare: of one data set, stream and backbone."""
    told = {
        (data_name(run.config["data"]), stream_name(run), run.config.get("backbone"))
        for run in runs
    }
    return len(told) <= 1


def named(name: str, options: dict[str, Any]) -> str:
    told = ", ".join(f"{key}={_spelled(value)}" for key, value in options.items())
    return f"{name} ({told})" if told else name


def command_of(run: RunResult) -> str:
    """A command that makes this run again; it says what is not at its default."""
    data = run.config["data"]
    said: dict[str, Any] = {"method": run.method}
    said |= {f"method.{key}": value for key, value in changed_options(run).items()}
    said |= {"data": data["name"]}
    said |= {f"data.{key}": value for key, value in changed_data(data).items()}
    for key, value in run.config.items():
        if key in ("method", "data", *NOT_IN_HASH):
            continue
        if key in ("increment", "seed") or value != getattr(USUAL, key, None):
            said[key] = value
    words = [f"--{key}={_spelled(value)}" for key, value in said.items()]
    return shlex.join(["dafuse", "run", *words])


def _without_places(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changed_data(data).items() if key not in PLACES}


def _spelled(value: Any) -> str:
    """As the command line reads it."""
    return value if isinstance(value, str) else json.dumps(value)

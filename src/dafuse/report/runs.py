"""Run folders read back: what a run was asked (config), what it met (provenance), what it gave."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from dafuse.engine.config import flatten
from dafuse.engine.matrix import AccuracyMatrix
from dafuse.engine.results import (
    CONFIG,
    FORMAT,
    PROVENANCE,
    RESULTS,
    FinishedTask,
    Results,
)
from dafuse.errors import DafuseError
from dafuse.sealed import read_sealed
from dafuse.shapes import ANYTHING, WORD, Each, Keys, Shape, require_shape

T = TypeVar("T")


class NoResultsYet(DafuseError):
    """A run folder in which no task is finished."""


@dataclass(frozen=True)
class SavedConfig:
    """A run's configuration as its folder has it, which leaves some options out."""

    everything: dict[str, Any]
    method: str
    options: dict[str, Any]  # of the method
    data: dict[str, Any]  # name and options
    backbone: str | None
    seed: int | None
    stream: str  # how images come: in tasks, or in a stream without them
    replay: str | None

    @classmethod
    def parsed(cls, config: dict[str, Any]) -> "SavedConfig":
        options = {key: value for key, value in config["method"].items() if key != "name"}
        seed, backbone, replay = (config.get(key) for key in ("seed", "backbone", "replay"))
        stream = config.get("stream", "tasks")
        name = config["method"]["name"]
        return cls(config, name, options, config["data"], backbone, seed, stream, replay)

    def flat(self) -> dict[str, Any]:
        """Everything under nested keys joined by dots."""
        return flatten(self.everything)


@dataclass(frozen=True)
class Origin:
    """The provenance of a run; "" where a part is not known."""

    everything: dict[str, Any] = field(default_factory=dict)
    device: str = ""
    date: str = ""
    weights: str = ""  # SHA-256
    data: str = ""  # fingerprint
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parsed(cls, content: dict[str, Any]) -> "Origin":
        return cls(
            {key: value for key, value in content.items() if key != "format"},
            content.get("device", ""),
            content.get("started", "")[:10],
            content.get("weights", {}).get("sha256", ""),
            content.get("data_fingerprint", ""),
            content.get("versions", {}),
        )


@dataclass(frozen=True)
class Diagnosis:
    """DAF's measurements of its fusion in one task; None where there are none."""

    beta: dict[int, dict[str, float]] | None = None  # quantiles for each layer
    clipped_low: float | None = None  # shares of β
    clipped_high: float | None = None
    gradient_over_displacement: float | None = None  # median of |g / D|
    moved: float | None = None  # of the global adapter, relative to its norm
    empirical_risk: float | None = None  # the terms of the bound
    init_sq_distance: float | None = None
    global_sq_distance: float | None = None

    @classmethod
    def parsed(cls, content: dict[str, Any]) -> "Diagnosis":
        beta, bound = content.get("beta"), content.get("bound", {})
        return cls(
            None if beta is None else {b["layer"]: b["quantiles"] for b in beta if b["quantiles"]},
            content.get("clipped_low"),
            content.get("clipped_high"),
            content.get("median_abs_gradient_over_displacement"),
            content.get("moved", {}).get("relative"),
            *map(bound.get, ("empirical_risk", "init_sq_distance", "global_sq_distance")),
        )


@dataclass(kw_only=True)
class RunResult(Results):
    """A run as a report reads it; every part was checked when it was read."""

    folder: Path
    hash: str
    config: SavedConfig
    provenance: Origin
    primary: bool = True

    def views(self) -> list["RunResult"]:
        """The run, and behind it one like it for each other way to predict.

        Only the accuracies of these are known, and whether images are kept; times, bytes and
        passes are the whole run's.
        """
        bare = replace(
            self,
            tasks=[FinishedTask() for _ in self.tasks],
            confusion=[],
            others={},
            primary=False,
        )

        def view(way: str, counts: AccuracyMatrix) -> RunResult:
            own = replace(self.declared, passes_per_prediction=None, assumes=None, prediction=way)
            return replace(bare, matrix=counts, declared=own)

        return [self, *(view(way, counts) for way, counts in self.others.items())]

    @property
    def prediction(self) -> str:
        """The way to predict that the matrix counts, where there are several."""
        return self.declared.prediction

    @property
    def seconds(self) -> float:
        """The seconds of all phases of all tasks."""
        return float(sum(sum(task.seconds.values()) for task in self.tasks))

    @property
    def replayed(self) -> bool:
        """Tell whether its training was taken from another run's record."""
        trained = any(task.images.get("train") for task in self.tasks)
        return self.config.replay is not None and not trained

    @property
    def trains(self) -> bool:
        """Tell whether anything was trained in it or in the run it replays, as far as is known."""
        known = self.primary and self.config.replay is None and all(t.images for t in self.tasks)
        return not known or any("train" in task.images for task in self.tasks)

    @property
    def step(self) -> str:
        """The word for a step of it: a task, or a point of a stream without tasks."""
        return "task" if self.config.stream == "tasks" else "point"

    @property
    def mark(self) -> str:
        """Words for how far an unfinished run is, e.g. "3 of 20 tasks"; "" for a finished one."""
        done, total = len(self.matrix), self.tasks_total
        return f"{done} of {total} {self.step}s" if done < total else ""

    @property
    def seen_classes(self) -> list[int]:
        """The number of classes that were known after each finished task."""
        return list(accumulate(self.task_sizes))[: len(self.matrix)]

    @property
    def curve(self) -> list[float]:
        """Accuracy in percent over all seen classes after each task; NaN without test images."""
        return self.matrix.curve_per_sample()

    @cached_property
    def _diagnoses(self) -> list[Diagnosis]:
        return [Diagnosis.parsed(task.diagnosis) for task in self.tasks]

    def diagnosed(self, part: Callable[[Diagnosis], T | None]) -> list[tuple[int, T]]:
        """(task counted from 1, value) for the tasks whose diagnosis has this part."""
        found = ((t, part(measured)) for t, measured in enumerate(self._diagnoses, 1))
        return [(t, value) for t, value in found if value is not None]


def load_run(folder: str | os.PathLike[str]) -> RunResult:
    folder = Path(folder)
    if not os.path.lexists(folder / "config.json"):
        raise DafuseError(f"{folder} is not a run folder: it has no config.json")
    if not os.path.lexists(folder / "results.json"):
        if _has_checkpoint(folder):
            raise NoResultsYet(
                f"{folder} has a checkpoint, but no results.json: start its run again, which "
                "writes it again"
            )
        raise NoResultsYet(f"{folder} has no results yet: no task is finished")
    config = _read(folder / "config.json", "config")
    _require(folder / "config.json", config, Keys({"config": CONFIG}, {"hash": WORD}))
    results = _read(folder / "results.json", *RESULTS.required)
    if not results["correct"]:
        raise NoResultsYet(f"{folder} has no results yet: no task is finished")
    recorded = os.path.lexists(folder / "provenance.json")
    provenance = _read(folder / "provenance.json") if recorded else {}
    _require(folder / "provenance.json", provenance, PROVENANCE)
    try:
        parts = vars(Results.parsed(results))
    except ValueError as error:
        file = folder / "results.json"
        raise DafuseError(f"{file} does not hold together: {error}; {_again(file)}") from None
    return RunResult(
        **parts,
        folder=folder,
        hash=config.get("hash", ""),
        config=SavedConfig.parsed(config["config"]),
        provenance=Origin.parsed(provenance),
    )


def find_runs(
    paths: Iterable[str | os.PathLike[str]], say: Callable[[str], None] = lambda line: None
) -> list[RunResult]:
    """Every run in `paths`: run folders, and folders that contain some at any depth.

    A run that cannot be read is skipped, and so is one inside a folder that has no finished task;
    `say` is told.
    """
    runs: dict[str, RunResult] = {}
    damages: list[DafuseError] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise DafuseError(f"{path} is not a folder")
        folders = list(_run_folders(path, set()))
        if not folders:
            raise DafuseError(f"{path} is not a run folder (it has no config.json) and holds none")
        for folder in folders:
            try:
                runs.setdefault(os.path.realpath(folder), load_run(folder))
            except NoResultsYet as nothing:
                if folder == path:
                    raise
                say(f"skipped: {nothing}")
            except DafuseError as damage:
                damages.append(damage)
                say(f"skipped: {damage}")
    if not runs and damages:
        raise damages[0]
    if not runs:
        raise NoResultsYet("there is nothing to report yet: none of the runs has a finished task")
    return list(runs.values())


def _run_folders(folder: Path, visited: set[str]) -> Iterator[Path]:
    """Run folders at or under `folder`, in order of name; runs are not searched for runs."""
    real = os.path.realpath(folder)
    if real in visited:  # a link that leads back
        return
    visited.add(real)
    has_config, has_results = (
        os.path.lexists(folder / name) for name in ("config.json", "results.json")
    )
    if has_config or has_results or _has_checkpoint(folder):
        yield folder
    if has_config:
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir():
            yield from _run_folders(inner, visited)


def _read(path: Path, *keys: str) -> dict[str, Any]:
    content = read_sealed(path, _again(path), path.parent)
    missing = [
        key for key in ("format", *keys) if not isinstance(content, dict) or key not in content
    ]
    if missing:
        raise DafuseError(
            f"{path} was not written by a dafuse run: it lacks {', '.join(missing)}; {_again(path)}"
        )
    if content["format"] != FORMAT:
        raise DafuseError(
            f"{path} has format {content['format']!r}, and this dafuse reads {FORMAT}: "
            "it was written by a newer version, so upgrade dafuse"
        )
    return dict(content)


def _require(path: Path, content: dict[str, Any], shape: Shape) -> None:
    try:
        require_shape(content, Each(ANYTHING))
        require_shape(content, shape)
    except ValueError as error:
        raise DafuseError(
            f"{path} was not written by a dafuse run: {error}; {_again(path)}"
        ) from None


def _has_checkpoint(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("task-*.json"))


def _again(file: Path) -> str:
    """Say what to do about a run's file that cannot be reported."""
    if file.name == "results.json":
        return f"delete {file.parent}, or start its run again, which writes results.json again"
    return f"delete {file.parent} to run it again"

"""Run folders read back: what a run was asked (config), what it met (provenance), what it gave."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from dafuse.engine.matrix import AccuracyMatrix
from dafuse.engine.results import CONFIG, PROVENANCE, RESULTS, accuracy_matrices
from dafuse.errors import DafuseError
from dafuse.sealed import read_sealed
from dafuse.shapes import ANYTHING, WORD, Each, Keys, Shape, require_shape

FORMAT = 1  # the newest format of a run's JSON files that this code reads


class NoResultsYet(DafuseError):
    """A run folder in which no task is finished."""


@dataclass
class RunResult:
    folder: Path
    hash: str
    config: dict[str, Any]
    provenance: dict[str, Any]
    results: dict[str, Any]
    matrix: AccuracyMatrix
    prediction: str = ""  # the way to predict that the matrix counts, where there are several
    others: dict[str, AccuracyMatrix] = field(default_factory=dict)  # by the other ways
    primary: bool = True

    def views(self) -> list["RunResult"]:
        """The run, and behind it one like it for each other way to predict.

        Of those the accuracies are known, and whether images are kept; times, bytes and passes are
        the whole run's.
        """
        declared = self.results.get("method", {})
        kept = {key: declared[key] for key in ("keeps_images", "defaults") if key in declared}
        bare = {**self.results, "confusion": [], "method": kept}
        bare["tasks"] = [{"seconds": {}} for _ in self.tasks]
        return [self] + [
            replace(self, results=bare, matrix=counts, prediction=way, others={}, primary=False)
            for way, counts in self.others.items()
        ]

    @property
    def seconds(self) -> float:
        """Of all phases of all tasks."""
        return float(sum(sum(task["seconds"].values()) for task in self.tasks))

    @property
    def replayed(self) -> bool:
        """Whether its training was taken from another run's record."""
        trained = any(task.get("images", {}).get("train") for task in self.tasks)
        return self.config.get("replay") is not None and not trained

    @property
    def trains(self) -> bool:
        """Whether anything was trained in it or in the run it replays, as far as that is known."""
        phases = [task.get("images") for task in self.tasks]
        known = self.primary and self.config.get("replay") is None and all(phases)
        return not known or any("train" in images for images in phases if images)

    @property
    def method(self) -> str:
        return self.config["method"]["name"]

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def stream(self) -> str:
        """How its images came: in tasks, or in a stream without them."""
        return self.config.get("stream", "tasks")

    @property
    def step(self) -> str:
        """What it is tested after: each task, or each point of a stream without tasks."""
        return "task" if self.stream == "tasks" else "point"

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The finished tasks: seconds, images, bytes kept, loss and diagnosis of each."""
        return self.results["tasks"]

    @property
    def mark(self) -> str:
        """Says how far a run is that is not at its end, e.g. "3 of 20 tasks"."""
        done, total = len(self.matrix), self.results["tasks_total"]
        return f"{done} of {total} {self.step}s" if done < total else ""

    @property
    def seen_classes(self) -> list[int]:
        """How many classes were known after each finished task."""
        return list(accumulate(self.results["task_sizes"]))[: len(self.matrix)]

    @property
    def curve(self) -> list[float]:
        """Accuracy in percent over all seen classes after each task; NaN without test images."""
        curve = self.matrix.curve_per_sample()
        return [
            a if sum(n) else float("nan") for a, n in zip(curve, self.matrix.total, strict=True)
        ]

    def diagnosed(self, key: str) -> list[tuple[int, Any]]:
        """(task counted from 1, value) for the tasks whose diagnosis has `key`."""
        found = (
            (t, (task.get("diagnosis") or {}).get(key)) for t, task in enumerate(self.tasks, 1)
        )
        return [(t, value) for t, value in found if value is not None]


def load_run(folder: str | os.PathLike[str]) -> RunResult:
    folder = Path(folder)
    if not os.path.lexists(folder / "config.json"):
        raise DafuseError(f"{folder} is not a run folder: it has no config.json")
    if not os.path.lexists(folder / "results.json"):
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
        matrix, others = accuracy_matrices(results)
    except ValueError as error:
        raise DafuseError(
            f"{folder / 'results.json'} does not hold together: {error}; {_again(folder)}"
        ) from None
    return RunResult(
        folder,
        config.get("hash", ""),
        config["config"],
        provenance,
        results,
        matrix,
        results.get("method", {}).get("prediction") or "",
        others,
    )


def find_runs(
    paths: Iterable[str | os.PathLike[str]], say: Callable[[str], None] = lambda line: None
) -> list[RunResult]:
    """Every run in `paths`: run folders, and folders that contain some at any depth.

    A run that cannot be read is left out, and so is one inside a folder that has no finished task;
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
                say(f"left out: {nothing}")
            except DafuseError as damage:
                damages.append(damage)
                say(f"left out: {damage}")
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
    if has_config or has_results:
        yield folder
    if has_config:
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir():
            yield from _run_folders(inner, visited)


def _read(path: Path, *keys: str) -> dict[str, Any]:
    content = read_sealed(path, _again(path.parent), path.parent)
    missing = [
        key for key in ("format", *keys) if not isinstance(content, dict) or key not in content
    ]
    if missing:
        raise DafuseError(
            f"{path} was not written by a dafuse run: it lacks {', '.join(missing)}; "
            f"{_again(path.parent)}"
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
            f"{path} was not written by a dafuse run: {error}; {_again(path.parent)}"
        ) from None


def _again(folder: Path) -> str:
    """What to do about a run's file that cannot be reported."""
    return f"delete {folder}, or start its run again, which writes results.json anew"

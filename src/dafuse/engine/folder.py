"""A run's folder: what is written there, in which order, and how a killed run continues.

    config.json       the resolved configuration and its hash
    provenance.json   command, versions, device, weights, data
    events.jsonl      what happened when, one JSON object a line (for people and tools; never read)
    log.txt           what the terminal said
    results.json      counts, diagnoses, times: everything the report needs
    checkpoints/      task-0003.safetensors and task-0003.json, of the last finished task

A checkpoint counts only when its JSON file is there; that file is written last, holds the results
so far and the SHA-256 of the tensors, and only then is the one before it removed. So a run killed
at any moment finds a whole checkpoint or none. Every JSON file that is read again tells the SHA-256
of its own contents (`dafuse.sealed`); in folders of versions before that, none does.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dafuse.engine.config import differences, flatten
from dafuse.engine.provenance import compared_inputs
from dafuse.engine.results import CHECKPOINT, FORMAT, INPUTS, Results
from dafuse.errors import DafuseError
from dafuse.files import (
    locked,
    make_folder,
    open_inside,
    read_inside,
    refuse_links,
    remove_leftovers,
    write_atomically,
)
from dafuse.sealed import read_sealed, write_sealed
from dafuse.shapes import require_shape


@dataclass
class Checkpoint:
    task: int  # 0-based index of the last finished task
    state: dict[str, Tensor]
    results: Results


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open(self, config: dict[str, Any], config_hash: str) -> Iterator["RunFolder"]:
        """Hold the folder for this run alone; refuse one that belongs to another configuration."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DafuseError(f"{self.path} cannot be a run's folder: {error.strerror}") from None
        for name in ("checkpoints", "record"):
            if (self.path / name).exists() and not (self.path / name).is_dir():
                raise DafuseError(f"{self.path / name} is not a folder; {self._elsewhere}")
        with locked(self.path / ".lock", self._busy):
            remove_leftovers(self.path)
            self._claim(config, config_hash)
            yield self

    def discard_if_empty(self) -> None:
        """Leave no folder behind for a run that could not begin."""
        kept = {path.name for path in self.path.iterdir()}
        if kept <= {".lock", "config.json", "log.txt"}:
            for name in kept:
                (self.path / name).unlink()
            self.path.rmdir()

    def certify(self, provenance: dict[str, Any], resumed: bool) -> None:
        """Write down where the numbers come from; a resumed run must go on with the same."""
        file = self.path / "provenance.json"
        if not resumed:
            write_sealed(file, provenance, self.path)
            return
        before = read_sealed(file, self.start_again, self.path)
        with self._reading(file):
            require_shape(before, INPUTS)
        reading = "way images are read (--memory-gb)", before.get("reading"), provenance["reading"]
        for what, old, new in [*compared_inputs(before, provenance), reading]:
            if old != new:
                raise DafuseError(
                    f"the {what} changed since the run in {self.path} began "
                    f"({str(old)[:12]} then, {new[:12]} now); put it back or choose another --out"
                )

    def event(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **_without_nan(fields)})
        with open_inside(self.path / "events.jsonl", self.path, "a") as events:
            events.write(line + "\n")

    def save(self, task: int, state: dict[str, Tensor], results: Results) -> None:
        """Make the task's outcome durable, then drop the checkpoint before it."""
        folder = self.path / "checkpoints"
        make_folder(folder, self.path)
        tensors = save({key: tensor.detach().cpu().contiguous() for key, tensor in state.items()})
        name = f"task-{task + 1:04d}"
        write_atomically(folder / f"{name}.safetensors", tensors, self.path)
        digest = hashlib.sha256(tensors).hexdigest()
        content = results.as_json()
        record = {"format": FORMAT, "task": task, "sha256": digest, "results": content}
        write_sealed(folder / f"{name}.json", record, self.path)
        self._drop_before(name)
        write_sealed(self.path / "results.json", content, self.path)

    def latest(self) -> Checkpoint | None:
        """Return the last checkpoint that was written whole."""
        for record_file in reversed(self._records()):
            record = read_sealed(record_file, self.start_again, self.path)
            _check_format(record, record_file)
            with self._reading(record_file):
                require_shape(record, CHECKPOINT)
                results = Results.parsed(record["results"])
            if len(results.tasks) != record["task"] + 1:
                raise DafuseError(f"{record_file} is of another task; {self.start_again}")
            state = self._tensors(record_file.with_suffix(".safetensors"), record["sha256"])
            self._drop_before(record_file.stem)  # a run that was killed may have left some
            write_sealed(self.path / "results.json", record["results"], self.path)
            return Checkpoint(record["task"], state, results)
        return None

    def _drop_before(self, name: str) -> None:
        """Delete the checkpoints of earlier tasks than this one."""
        folder = self.path / "checkpoints"
        for old in [*folder.glob("task-*.json"), *folder.glob("task-*.safetensors")]:
            if old.stem < name:
                old.unlink()

    def _tensors(self, file: Path, sha256: str) -> dict[str, Tensor]:
        """Read a checkpoint's tensors; refuse other bytes than those that were written."""
        try:
            data = read_inside(file, self.path)
            if hashlib.sha256(data).hexdigest() == sha256:
                return load(data)
        except (OSError, SafetensorError):
            pass
        raise DafuseError(f"{file} is damaged or missing; {self.start_again}")

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        """Refuse JSON that no run would write."""
        try:
            yield
        except ValueError as error:
            raise DafuseError(
                f"{file} does not hold together: {error}; {self.start_again}"
            ) from None

    @property
    def _elsewhere(self) -> str:
        return f"delete {self.path} or choose another --out"

    @property
    def start_again(self) -> str:
        """Say what to do about a checkpoint from which no run can continue."""
        return f"delete {self.path / 'checkpoints'} to start the run again from its first task"

    def _records(self) -> list[Path]:
        folder = self.path / "checkpoints"
        refuse_links(folder, self.path)
        return sorted(folder.glob("task-*.json"))

    def _busy(self) -> NoReturn:
        raise DafuseError(f"another process is running in {self.path}")

    def _claim(self, config: dict[str, Any], config_hash: str) -> None:
        """Write the configuration, or find the same one; refuse to mix two runs."""
        file = self.path / "config.json"
        saved: dict[str, Any] = {"hash": None}
        if file.exists():
            saved = read_sealed(file, self._elsewhere, self.path)
            _check_format(saved, file)
        if saved.get("hash") == config_hash:
            return
        if not self._records():
            content = {"format": FORMAT, "hash": config_hash, "config": config}
            write_sealed(file, content, self.path)
            return
        differing = [
            f"{key} was {old!r}, now {new!r}"
            for key, old, new in differences(_flat(saved.get("config")), flatten(config))
        ]
        raise DafuseError(
            f"{self.path} holds a run with another configuration ({'; '.join(differing[:5])}); "
            "choose another --out"
        )


class UnseenFolder(RunFolder):
    """The folder of a run of which another process writes it, perhaps on another machine."""

    @contextmanager
    def open(self, config: dict[str, Any], config_hash: str) -> Iterator["RunFolder"]:
        yield self

    def discard_if_empty(self) -> None:
        """Leave it to the process that writes."""

    def certify(self, provenance: dict[str, Any], resumed: bool) -> None:
        """Leave it to the process that writes."""

    def event(self, kind: str, **fields: Any) -> None:
        """Leave it to the process that writes."""

    def save(self, task: int, state: dict[str, Tensor], results: Results) -> None:
        """Leave it to the process that writes."""

    def latest(self) -> Checkpoint | None:
        return None


def _check_format(content: Any, file: Path) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DafuseError(f"{file} is not of a run of this version of dafuse; choose another --out")


def _flat(config: Any) -> dict[str, Any]:
    """Return a saved configuration by keys joined by dots; nothing if it is not one."""
    try:
        return flatten(config)
    except (AttributeError, TypeError, RecursionError):
        return {}


def _without_nan(value: Any) -> Any:
    """Replace NaN by null, which strict JSON can hold."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value

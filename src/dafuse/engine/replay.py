"""Record once, replay many: the results of a task's training, kept for runs that train the same.

A task adapter's training depends on its init and on nothing that comes after it: not on the fusion
rule, its numbers, the statistics or the classifier. So a run with ``record`` keeps the results of
training in ``record/`` of its folder, and a run with ``replay`` reads them from there. The method
only names the steps whose results are kept (`Method.recorded_steps`); a record wraps them. The
methods that name any are `daf`, `daf-paper` and `daf-retrieval`.

    record/training-0003.safetensors    the third task's adapter and the head it was trained with
    record/per_sample-0003.safetensors  gradient and Fisher diagonal at it
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dafuse.data.stream import Task
from dafuse.engine.config import NOT_IN_HASH, RunConfig, differences, flatten, saved_config
from dafuse.engine.provenance import compared_inputs
from dafuse.engine.ranks import Ranks
from dafuse.engine.results import INPUTS
from dafuse.errors import DafuseError
from dafuse.files import make_folder, refuse_links, write_atomically
from dafuse.methods.contract import Method
from dafuse.methods.registry import find_method
from dafuse.sealed import read_sealed
from dafuse.shapes import require_shape

Tensors = dict[str, Tensor]


class Recording:
    """Record of training: what it has is read, the rest is computed and, if asked, recorded."""

    def __init__(self, read_from: Path | None, write_to: Path | None, ranks: Ranks) -> None:
        self.read_from, self.write_to, self.ranks = read_from, write_to, ranks
        self.device = ranks.fabric.device

    def wrap(self, method: Method) -> None:
        """Replace the method's recorded steps by ones that read and write this record.

        A run that records keeps each step's result for every task. Where its own options need none,
        such as the curvature for a rule other than the paper's, the step follows `learn`.
        """
        steps, taken, learn = method.recorded_steps(), set[str](), method.learn

        def wrapped(step: str, name: str) -> Callable[..., Tensors]:
            compute = getattr(method, step)

            def take(task: Task, *given: Any) -> Tensors:
                taken.add(step)
                return self.kept(name, task.index, lambda: compute(task, *given))

            return take

        def learn_and_record(task: Task) -> dict[str, Any]:
            taken.clear()
            diagnosis = learn(task)
            for step in [step for step in steps if step not in taken]:
                getattr(method, step)(task)
            return diagnosis

        new: dict[str, Callable[..., Any]]
        new = {step: wrapped(step, name) for step, name in steps.items()}
        if self.write_to is not None:
            new["learn"] = learn_and_record
        for name, function in new.items():
            setattr(method, name, function)

    def kept(self, name: str, task: int, compute: Callable[[], Tensors]) -> Tensors:
        """Return the recorded result of this name and task; compute it if there is none."""
        file = f"{name}-{task + 1:04d}.safetensors"
        first = self.ranks.is_first
        tensors = self.ranks.broadcast_tensors(self._read(file) if first else None)
        if tensors is None:
            tensors = compute()
        if self.write_to is not None and first:
            make_folder(self.write_to, self.write_to.parent)
            content = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            # in this order sums round the same
            about = {"order": "\n".join(content), "sha256": _digest(content)}
            saved = save(content, metadata=about)
            write_atomically(self.write_to / file, saved, self.write_to.parent)
        return tensors

    def _read(self, file: str) -> Tensors | None:
        if self.read_from is None or not (self.read_from / file).is_file():
            return None
        refuse_links(self.read_from / file, self.read_from.parent)
        try:
            with safe_open(self.read_from / file, "pt") as saved:
                about = saved.metadata()
                # copies: memory of a file may be aligned otherwise, which changes how sums round
                names = about["order"].split("\n")
                tensors = {name: saved.get_tensor(name).clone() for name in names}
            if about.get("sha256", digest := _digest(tensors)) != digest:  # older files have none
                raise ValueError("its tensors do not match its SHA-256")
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DafuseError(
                f"{self.read_from / file} is damaged: {error}; delete {self.read_from} to have "
                "another run recorded"
            ) from None


def _digest(tensors: Tensors) -> str:
    """Return the SHA-256 of CPU tensors: their names, types, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def open_record(config: RunConfig, folder: Path, ranks: Ranks) -> Recording | None:
    """Return the record for a run's options; None if it neither records nor replays."""
    if not config.record and config.replay is None:
        return None
    if not find_method(config.method["name"]).after_training:
        raise DafuseError(f"the method {config.method['name']} does not record its training")
    source = None if config.replay is None else Path(config.replay)
    if source is not None and ranks.is_first:
        _require_same_training(config, source)
    return Recording(
        source / "record" if source else None, folder / "record" if config.record else None, ranks
    )


def require_same_inputs(config: RunConfig, provenance: dict[str, Any]) -> None:
    """Refuse to replay a run with other weights or other data."""
    if config.replay is None:
        return
    recorded = read_sealed(
        Path(config.replay) / "provenance.json", "replay another run", config.replay
    )
    try:
        require_shape(recorded, INPUTS)
    except ValueError as error:
        raise DafuseError(f"{config.replay} cannot be replayed: provenance.json: {error}") from None
    for what, old, new in compared_inputs(recorded, provenance):
        if old != new:
            raise DafuseError(f"{config.replay} was recorded with other {what}: replay another run")


def _require_same_training(config: RunConfig, source: Path) -> None:
    if not (source / "record").is_dir():
        raise DafuseError(f"{source} has no record: it must be the folder of a run with --record")
    found = read_sealed(source / "config.json", "replay another run", source)
    saved = saved_config(found.get("config") if isinstance(found, dict) else None, source)
    if different := differences(training_part(saved), training_part(config)):
        changes = "; ".join(f"{key} {old!r}, now {new!r}" for key, old, new in different[:5])
        raise DafuseError(f"{source} was trained differently, so it cannot be replayed: {changes}")


def training_part(config: RunConfig) -> dict[str, Any]:
    """Return the part of the configuration that training depends on."""
    method = find_method(config.method["name"])
    ignored = {"method.name", *NOT_IN_HASH, *(f"method.{name}" for name in method.after_training)}
    values = flatten({key: getattr(config, key) for key in RunConfig.__dataclass_fields__})
    return {key: value for key, value in values.items() if key not in ignored}

"""Runs and experiments: begun again, they must end with the bits of those nothing disturbed."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dafuse.sealed import SEAL
from faults.command import Ended, run
from faults.disk_calls import Counting, calls_of, install
from faults.trial import Outcome
from faults.world import World, require_well

TINY = ("--increment", "[2,1]", "--device", "cpu", "--method.epochs=1", "--method.align_epochs=1")
TIMES = ("seconds", SEAL)  # what differs between two runs of one command


@dataclass(frozen=True)
class Research:
    """A command of research that writes into a folder."""

    what: str
    words: tuple[str, ...]
    share: float  # of the trials, beside that of others

    def do(self, world: World, there: Path, before: Callable[[], None] | None = None) -> Ended:
        where = ("--data", world.first, "--out", there / "out")
        return run(*self.words, *where, before=before)


RESEARCH = [
    Research("run", ("run", "--method", "simplecil", *TINY[:4]), 0.15),
    Research("run", ("run", "--method", "lift", *TINY[:4]), 0.15),
    Research("run, trained", ("run", "--method", "daf", *TINY), 0.1),
    Research("experiment", ("experiment", "retrieval", *TINY), 0.03),
]


class KnownResearch:
    """The command's files when nothing disturbs it, its calls of the disk and its seconds."""

    def __init__(self, world: World, change: Research) -> None:
        self.world, self.change = world, change
        there = self.fresh()
        calls = world.place / "calls"
        calls.unlink(missing_ok=True)
        began = time.monotonic()
        require_well(change.do(world, there, partial(install, Counting(str(there), str(calls)))))
        self.seconds = time.monotonic() - began
        self.calls = calls_of(calls)
        self.left = outcome(there)

    def fresh(self) -> Path:
        there = self.world.place / "trial"
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        return there

    def wrong(self, there: Path, ended: Ended) -> tuple[Outcome, str] | None:
        """Say what is not as promised once the command was given again; None: nothing."""
        again = self.change.do(self.world, there)
        for one in (ended, again):
            if one.has_traceback:
                return Outcome.TRACEBACK, one.err.strip().splitlines()[-1]
        if again.status != 0:
            return Outcome.LOST, f"given again, it ended with {again.status}: {again.err[-300:]}"
        found = outcome(there)
        if found.keys() != self.left.keys():
            return Outcome.WRONG, f"other files: {sorted(found.keys() ^ self.left.keys())}"
        differing = [name for name, content in found.items() if content != self.left[name]]
        return (Outcome.WRONG, f"other contents: {', '.join(differing)}") if differing else None


def outcome(folder: Path) -> dict[str, Any]:
    """Every file by name; with its contents but for times where these must be the same."""
    files = (file for file in sorted(folder.rglob("*")) if not file.is_dir())
    return {file.relative_to(folder).as_posix(): _content(file) for file in files}


def _content(file: Path) -> Any:
    if file.suffix == ".safetensors":
        return file.read_bytes()
    if file.name == "results.json" or file.parent.name == "checkpoints":
        return _without_times(json.loads(file.read_bytes()))
    return None  # a log, a page with times


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _without_times(v) for k, v in content.items() if k not in TIMES}
    return [_without_times(one) for one in content] if isinstance(content, list) else content

"""A disk that is full at any byte, read-only from any call on, or fails to keep its writes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from faults.changes import CHANGES, Change, Known
from faults.command import Ended, Hangs
from faults.disk_calls import FailingSync, Fault, Full, ReadOnly, install
from faults.trial import Outcome, Trial
from faults.world import World

LIGHT = [change for change in CHANGES if change.share == 1]
PAGE = 4096  # bytes by which a small file system grows
LARGE = 256 * 2**20
Found = tuple[Outcome, str] | None


class Disks:
    """Each trial gives a command one such disk; then the model is asked, and changed once more."""

    def __init__(self, place: Path) -> None:
        self.world = World(place)
        self._known: dict[str, Known] = {}
        self._small = SmallDisk(place / "small")
        self._kinds: list[tuple[str, int, Callable[[Random, Known], tuple[str, Found]]]] = [
            ("full", 4, partial(self._faulty, _full)),
            ("read-only", 2, partial(self._faulty, _read_only)),
            ("failing fsync", 2, partial(self._faulty, _failing_sync)),
        ]
        if self._small.is_possible:
            self._kinds.append(("a small file system", 2, self._on_small_disk))

    def trials(self, seed: int) -> Iterator[Trial]:
        random = Random(seed)
        kinds, weights, _ = zip(*self._kinds, strict=True)
        kind = random.choices(kinds, weights)[0]
        yield self.broken(kind, random.choice(LIGHT), random, seed)

    def broken(self, kind: str, change: Change, random: Random, seed: int) -> Trial:
        """Let this command run on a disk of this kind."""
        make_trial = next(trial for name, _, trial in self._kinds if name == kind)
        if change.what not in self._known:
            self._known[change.what] = Known(self.world, change)
        try:
            fault, found = make_trial(random, self._known[change.what])
        except Hangs as hangs:
            fault, found = "", (Outcome.WRONG, str(hangs))
        if found is None:
            return Trial(kind, seed)
        return Trial(kind, seed, found[0], f"{change.what}: {fault}: {found[1]}")

    def close(self) -> None:
        self._small.close()

    def _faulty(
        self, make: Callable[[Random, Known, str], Fault], random: Random, known: Known
    ) -> tuple[str, Found]:
        there = known.fresh()
        fault = make(random, known, str(there))
        before = partial(install, fault)
        ended = known.change.do(self.world, there, before)
        return str(fault), _ill_said(ended) or known.wrong(there, ended, before)

    def _on_small_disk(self, random: Random, known: Known) -> tuple[str, Found]:
        room = random.randint(0, _written(known) // PAGE + 1) * PAGE
        there = self._small.fresh(known.start, room)
        ended = known.change.do(self.world, there)
        found = _ill_said(ended) or known.wrong(there, ended, mend=self._small.grow)
        return f"{room} bytes of room", found


class SmallDisk:
    """A file system in memory, where this machine lets us mount one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self.is_possible = self._mount("-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs")

    def fresh(self, start: Path, room: int) -> Path:
        """A copy of this folder, on a disk that has room for so many bytes more."""
        self.grow()
        there = self.place / "trial"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(start, there)
        disk = os.statvfs(self.place)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        self._resize(max(used + room, PAGE))  # no size at all would be no limit
        return there

    def grow(self) -> None:
        self._resize(LARGE)

    def close(self) -> None:
        if self.is_possible:
            subprocess.run(["umount", "--lazy", str(self.place)], check=False)

    def _resize(self, size: int) -> None:
        if not self._mount("-o", f"remount,size={size}"):
            raise RuntimeError(f"{self.place} cannot be given {size} bytes")

    def _mount(self, *options: str) -> bool:
        command = ["mount", *options, str(self.place)]
        with suppress(OSError):
            return subprocess.run(command, check=False, capture_output=True).returncode == 0
        return False


def _ill_said(ended: Ended) -> Found:
    """Say what is wrong with the command's end: it must be done, or say in a line why not."""
    if ended.has_traceback:
        return Outcome.TRACEBACK, ended.err.strip().splitlines()[-1]
    if ended.status == 0:
        return None
    *before, last = ended.err.strip().splitlines() or [""]
    if ended.status != 2 or not last.startswith("dafuse: "):
        return Outcome.WRONG, f"it ended with {ended.status}: {ended.err[-300:]}"
    if any(line.startswith("dafuse: ") for line in before):
        return Outcome.WRONG, f"it said more than a line: {ended.err[-300:]}"
    return None


def _written(known: Known) -> int:
    return sum(size for name, _, size in known.calls if name == "write")


def _full(random: Random, known: Known, below: str) -> Fault:
    return Full(below, random.randint(0, _written(known)))


def _read_only(random: Random, known: Known, below: str) -> Fault:
    return ReadOnly(below, random.choice([1, random.randint(1, len(known.calls))]))


def _failing_sync(random: Random, known: Known, below: str) -> Fault:
    syncs = sum(name == "fsync" for name, *_ in known.calls)
    return FailingSync(below, random.randint(1, max(1, syncs)), random.random() < 0.5)

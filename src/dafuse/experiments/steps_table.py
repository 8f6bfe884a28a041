"""One table of the steps that are made at the same time: how far each is, from its folder.

On a terminal it is drawn again and again; elsewhere there is a line whenever a step gets further.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dafuse.engine.config import RunConfig
from dafuse.errors import DafuseError
from dafuse.report.runs import load_run
from dafuse.wording import shown

HEAD = ("run", "seed", "state", "task", "accuracy", "seconds")
FIRST = ("running", "again", "begun", "failed", "waiting", "finished", "reused")  # order of rows
MADE = ("finished", "failed", "reused")


class ShownStep(Protocol):
    """The part of a step that the table needs."""

    label: str

    @property
    def config(self) -> RunConfig: ...

    @property
    def folder(self) -> Path: ...


class StepsTable:
    """Table of how far each step is; its caller says when a step begins and ends."""

    every = 1.0  # seconds

    def __init__(self, steps: Sequence[ShownStep], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.state = ["waiting"] * len(steps)
        self._steps = steps
        self._rows = [[step.label, str(step.config.seed), "waiting", "", "", ""] for step in steps]
        self._began = time.time()
        self._since: dict[int, float] = {}
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    @contextmanager
    def drawn(self) -> Iterator["StepsTable"]:
        """Draw it while the work goes on, and once more at its end."""
        if not self.console.is_terminal:
            yield self
            return
        with self._live:
            yield self
        self.console.print(self._all_rows())

    def say(self, line: str) -> None:
        self.console.print(shown(line), markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Show how far each step is."""
        for number in range(len(self._steps)):
            if self._rows[number][2] in MADE and self.state[number] == self._rows[number][2]:
                continue
            before, row = self._rows[number], self._row(number)
            self._rows[number] = row
            if not self.console.is_terminal and row[2:4] != before[2:4]:
                self._say_row(row)
        if self.console.is_terminal:
            self._live.update(self._all_rows(), refresh=True)

    def _row(self, number: int) -> list[str]:
        step, state = self._steps[number], self.state[number]
        row = [step.label, str(step.config.seed), state, "", "", ""]
        if state == "waiting":
            return row
        events = step.folder / "events.jsonl"
        if state == "begun" and events.is_file() and events.stat().st_mtime >= self._began:
            row[2] = "running"
            self._since.setdefault(number, time.time())
        if number in self._since:
            row[5] = f"{time.time() - self._since[number]:.0f}"
        try:
            found = load_run(step.folder)
        except (DafuseError, OSError):  # nothing yet, or nothing that can be read
            return row
        row[3] = f"{len(found.matrix)} of {found.tasks_total}"
        row[4] = "" if math.isnan(found.curve[-1]) else f"{found.curve[-1]:.2f}"
        if state in MADE:
            row[5] = f"{found.seconds:.0f}"
        return row

    def _say_row(self, row: Sequence[str]) -> None:
        label, seed, state, tasks, accuracy, seconds = row
        told = [f"{label}, seed {seed}: {state}"]
        told += [f"task {tasks}"] if tasks else []
        told += [f"{accuracy} %"] if accuracy else []
        told += [f"{seconds} s"] if seconds else []
        self.say(", ".join(told))

    def _all_rows(self) -> Group:
        table = Table(box=SIMPLE_HEAD)
        for number, title in enumerate(HEAD):
            table.add_column(title, justify="right" if number > 2 else "left")
        ordered = sorted(self._rows, key=lambda row: FIRST.index(row[2]))
        room = max(3, self.console.height - 6)
        for row in ordered[:room]:
            table.add_row(*(Text(shown(text)) for text in row))
        made = sum(row[2] in MADE for row in self._rows)
        return Group(table, Text(f"{made} of {len(self._rows)} made"))

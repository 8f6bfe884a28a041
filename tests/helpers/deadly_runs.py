"""Planned runs whose process dies after their first task: once, or each time."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dafuse.engine.folder import RunFolder
from dafuse.engine.run import Bench
from dafuse.experiments.plan import PlannedRun
from dafuse.progress import Progress


@dataclass
class DeadlyRun(PlannedRun):
    """A run that is killed after each task until it was killed so often."""

    deaths: int = 1
    notes: str = "deaths"  # a folder with a file for each death

    def make(self, progress: Progress, bench: Bench) -> None:
        event, notes = RunFolder.event, Path(self.notes)
        notes.mkdir(exist_ok=True)

        def deadly(folder: RunFolder, kind: str, **fields: Any) -> None:
            event(folder, kind, **fields)
            died = len(list(notes.iterdir()))
            if kind == "task" and died < self.deaths:
                (notes / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)

        RunFolder.event = deadly  # type: ignore[method-assign]
        try:
            super().make(progress, bench)
        finally:
            RunFolder.event = event  # type: ignore[method-assign]


def deadly(run: PlannedRun, deaths: int, notes: Path) -> DeadlyRun:
    return DeadlyRun(run.label, run.config, deaths, str(notes))

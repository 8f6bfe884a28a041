"""Progress on the terminal, drawn by rich, and lines that also go to a run's log."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from types import TracebackType

import rich.progress as bars
from rich.console import Console

from dafuse.files import open_inside
from dafuse.processes import rank_here
from dafuse.progress import Bar, LineProgress, Progress
from dafuse.wording import shown


class TerminalBar(Bar):
    def __init__(self, total: int, display: bars.Progress, task: bars.TaskID) -> None:
        super().__init__(total)
        self._display, self._task = display, task

    def advance(self, steps: int = 1, note: str = "") -> None:
        super().advance(steps, note)
        self._display.update(self._task, advance=steps, note=note)


class TerminalProgress(Progress):
    """A context manager around the work. In a log it writes a line every few seconds, not bars."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._display = bars.Progress(
            bars.TextColumn("{task.description:>14}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )
        self._lines = None if self.console.is_terminal else LineProgress(self.say)

    def __enter__(self) -> "TerminalProgress":
        if self._lines is None:  # rich before 14.3 prints an empty line where it is disabled
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lines is None:
            self._display.stop()

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        if self._lines is not None:
            with self._lines.bar(label, total) as bar:
                yield bar
            return
        task = self._display.add_task(label, total=total or None, note="")
        try:
            yield TerminalBar(total, self._display, task)
        finally:
            self._display.remove_task(task)

    def say(self, line: str) -> None:
        self.console.print(shown(line), markup=False, highlight=False, soft_wrap=True)


def shown_progress() -> "AbstractContextManager[Progress]":
    """Return the progress of a command; silent in a process where another one speaks."""
    return nullcontext(Progress()) if rank_here() else TerminalProgress()


class LoggedProgress(Progress):
    """Another progress whose lines are also written to a file."""

    def __init__(self, shown: Progress, log: Path) -> None:
        self._shown, self._log = shown, log

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        with self._shown.bar(label, total) as bar:
            yield bar

    def say(self, line: str) -> None:
        self._shown.say(line)
        with open_inside(self._log, self._log.parent, "a") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")

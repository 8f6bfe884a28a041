"""Progress of long work: labelled bars, silent by default, or a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dafuse.wording import shown

Batch = tuple[Any, Any]  # images and labels
EVERY = 5.0  # seconds between lines where there is no terminal for bars


class Bar:
    """The progress of one piece of work of known length. This bar only counts."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        self.done += steps

    def over(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches unchanged and count the images of each."""
        for images, labels in batches:
            yield images, labels
            self.advance(len(labels))


class Progress:
    """Progress that is silent; `dafuse.engine.display` draws bars on a terminal."""

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        yield Bar(total)

    def say(self, line: str) -> None:
        """Show the user a line that stays (a warning, a result)."""

    def waits(self, line: str) -> None:
        """Tell the user that other work must end first; `goes_on` ends the wait."""
        self.say(line)

    def goes_on(self) -> None:
        """End the wait, if there was one."""


class LineBar(Bar):
    """A bar that writes a line every few seconds."""

    def __init__(self, label: str, total: int, shown: "LineProgress") -> None:
        super().__init__(total)
        self._label, self._shown, self._began = label, shown, shown.clock()

    def advance(self, steps: int = 1, note: str = "") -> None:
        super().advance(steps, note)
        if self._shown.is_time():
            self._shown.say(self._line(note))

    def _line(self, note: str) -> str:
        line = f"{self._label}: {self.done:,}"
        if self.total:
            passed = self._shown.clock() - self._began
            left = passed * (self.total - self.done) / max(1, self.done)
            line += f" of {self.total:,} ({self.done / self.total:.0%}), {_duration(left)} left"
        return f"{line}, {note}" if note else line


class LineProgress(Progress):
    """Progress as a line every few seconds, for logs. Work that ends sooner writes nothing."""

    def __init__(
        self,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float = EVERY,
    ) -> None:
        self.clock, self._write, self._every = clock, write or _to_stderr, every
        self._last = clock()  # when the last line was written, by any bar
        self._takes_long = False  # lines have been written, so announce work of unknown length too

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        if self._takes_long and not total:  # nobody can tell how long it takes
            self.say(f"{label} ...")
        yield LineBar(label, total, self)

    def is_time(self) -> bool:
        """Tell whether the last line is old enough; if so, a new one is due and counts from now."""
        now = self.clock()
        if now - self._last < self._every:
            return False
        self._last, self._takes_long = now, True
        return True

    def say(self, line: str) -> None:
        self._write(line)


def _to_stderr(line: str) -> None:
    print(shown(line), file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

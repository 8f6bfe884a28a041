"""How far a lesson is, and how long it may take: what its bars say, as one number and a time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from dafuse.progress import Bar, Progress

# What each phase takes of a lesson's time, in their order: rounded from lessons of 1, 2 and 4 new
# classes with 18 images each, embedded backbone, on a CPU. One new class trains no adapter.
TRAINING = {"train": 0.92, "fisher": 0.05, "statistics": 0.02, "align": 0.01}
MEASURING = {"statistics": 0.6, "align": 0.4}
ANOTHER = "another process that is changing this model"


class LessonStopped(Exception):
    """The lesson was asked to end before its time."""


class LessonProgress(Progress):
    """Written by the thread that learns, read by others."""

    def __init__(self, trains: bool) -> None:
        self._shares = TRAINING if trains else MEASURING
        self.began = time.monotonic()
        self.phase = ""
        self.fraction = 0.0  # of the whole lesson; it never falls
        self.waiting_for: str | None = None
        self._waits_since, self._waited = 0.0, 0.0
        self._stop = Event()

    @property
    def seconds_left(self) -> float | None:
        """None while it is too early to tell."""
        fraction, seconds = self.fraction, time.monotonic() - self.began - self._waited
        return seconds * (1 - fraction) / fraction if fraction >= 0.02 else None

    def stop(self) -> None:
        """Break off at the next step of the lesson."""
        self._stop.set()

    def waits(self, line: str) -> None:
        """The line has the model's path, which is nobody's business beyond this machine."""
        self.waiting_for, self._waits_since = ANOTHER, time.monotonic()

    def goes_on(self) -> None:
        if self.waiting_for is not None:
            self.waiting_for = None
            self._waited += time.monotonic() - self._waits_since
        if self._stop.is_set():
            raise LessonStopped

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        bar = _LessonBar(self, label, total)
        self.phase = label
        bar.advance(0)
        yield bar

    def reached(self, label: str, done: float) -> None:
        """So much of this phase is done, and all before it."""
        if self._stop.is_set():
            raise LessonStopped
        phases = list(self._shares)
        # more images of known classes are measured before the new ones are trained
        early = label == "statistics" and "train" in phases and not self.fraction
        if label in phases and not early:
            before = sum(self._shares[phase] for phase in phases[: phases.index(label)])
            self.fraction = max(self.fraction, min(1.0, before + done * self._shares[label]))


class _LessonBar(Bar):
    def __init__(self, progress: LessonProgress, label: str, total: int) -> None:
        super().__init__(total)
        self._progress, self._label = progress, label

    def advance(self, steps: int = 1, note: str = "") -> None:
        super().advance(steps, note)
        self._progress.reached(self._label, self.done / self.total if self.total else 0.0)

"""Steps that change the model through the server, one at a time, while it goes on predicting.

A lesson is learned in the background; forget, rename, undo and export are done while their request
waits. A step is refused while another one is under way. While another process changes the model, a
lesson waits, and all other steps are refused.
"""

import gc
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Literal

from dafuse.data.class_names import composed
from dafuse.errors import DafuseError
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.security import Refusal
from dafuse.product.server.staging import Staged, Staging, check_name
from dafuse.product.summary import described
from dafuse.product.version import VersionRef
from dafuse.progress import Bar, Progress
from dafuse.taught.table import find_taught
from dafuse.wording import counted

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier
    from dafuse.product.steps import Forgotten

log = logging.getLogger("dafuse.server")
ANOTHER = "another process that is changing this model"
EARLY = 0.02  # share of a phase; before that, the time left cannot be told


class LessonStopped(Exception):
    """Exception that breaks a lesson off."""


class LessonProgress(Progress):
    """The progress of a lesson, which its thread writes and others read."""

    def __init__(self) -> None:
        self.began = self._phase_began = time.monotonic()
        self.phase = ""
        self.fraction = 0.0  # of the phase
        self.waiting_for: str | None = None
        self._stop = Event()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the phase ends; None while it is too early to tell."""
        fraction, seconds = self.fraction, time.monotonic() - self._phase_began
        return seconds * (1 - fraction) / fraction if fraction >= EARLY else None

    def stop(self) -> None:
        """Break off at the next step of the lesson."""
        self._stop.set()

    def waits(self, line: str) -> None:
        """Note that the lesson waits. The line itself is not shown: it has the model's path."""
        self.waiting_for = ANOTHER

    def goes_on(self) -> None:
        self.waiting_for = None
        self.reached(0.0)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        self.phase, self._phase_began = label, time.monotonic()
        self.reached(0.0)
        yield _LessonBar(self, total)

    def reached(self, fraction: float) -> None:
        if self._stop.is_set():
            raise LessonStopped
        self.fraction = min(1.0, fraction)


class _LessonBar(Bar):
    def __init__(self, progress: LessonProgress, total: int) -> None:
        super().__init__(total)
        self._progress = progress

    def advance(self, steps: int = 1, note: str = "") -> None:
        super().advance(steps, note)
        self._progress.reached(self.done / self.total if self.total else 0.0)


class _Impatient(Progress):
    """Progress that refuses to wait for another process: a request has no time for that."""

    def waits(self, line: str) -> None:
        raise Refusal(409, "another process is changing the model: try again when it is done")


@dataclass
class Job:
    """A lesson that was started, and what became of it."""

    number: int
    images: dict[str, int]  # how many of each class
    progress: LessonProgress
    before: VersionRef | None  # the version that the model was at
    stopped: bool = False  # the server ended while it was under way
    state: Literal["running", "done", "failed"] = "running"
    report: dict[str, Any] | None = None
    error: str | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.progress.began


class Lessons:
    """The steps on a classifier that is taught and changed through the server."""

    def __init__(self, classifier: "Classifier", staging: Staging, metrics: Metrics) -> None:
        self.classifier, self.staging, self._metrics = classifier, staging, metrics
        self.job: Job | None = None
        self._changing = Lock()  # held by the step that is under way
        self._doing = ""  # which that is
        self._thread: Thread | None = None
        metrics.gauge("staged_pictures", lambda: sum(staging.counts.values()))
        metrics.gauge("learning", self._changing.locked)

    @property
    def flip(self) -> bool | None:
        """Tell whether the next lesson also learns mirrored images; None: the method never does."""
        version = self.classifier.version
        method = find_taught(version.method, version.settings)
        return version.flip if method.trains else None

    @property
    def last_step(self) -> dict[str, Any] | None:
        """The step that undo would take back; None: there is none."""
        version, folder = self.classifier.version, self.classifier.folder
        try:
            kept = version.parent is not None and version.parent.number >= folder.oldest()
        except DafuseError:  # then undo says what is wrong
            kept = True
        return version.step if kept else None

    @property
    def version(self) -> str | None:
        """The name by which `undo` knows the last step; read it before `last_step`.

        A number alone is not enough: after undo, the next step has the same number again.
        """
        current = self.classifier.current
        return None if current is None else f"{current.number}-{current.sha256[:12]}"

    def start(self, flip: bool | None = None) -> Job:
        """Start to learn what is staged; ``flip``: also mirrored; None: as in the lesson before."""
        if flip is not None and self.flip is None:
            method = self.classifier.version.method
            raise Refusal(
                422, f"flip is for methods that train, and {method} does not: leave it out"
            )
        self._claim("a lesson is being learned")
        taken = self.staging.take()
        if not taken:
            self._changing.release()
            raise Refusal(409, "no images wait to be learned: send some to /classes/NAME/images")
        number = 1 if self.job is None else self.job.number + 1
        counts = {name: len(images) for name, images in taken.items()}
        self.job = Job(number, counts, LessonProgress(), self.classifier.folder.current_if_any())
        # a daemon, so that a lesson that hangs cannot keep the server from ending
        self._thread = Thread(
            target=self._learn, args=(self.job, taken, flip), daemon=True, name="learn"
        )
        self._thread.start()
        return self.job

    def undo(self, version: str | None = None) -> dict[str, Any]:
        """Take back the last step and return it; given a version, only if the model is at it."""
        with self._alone("a step is being undone"):
            expected = None if version is None else self._current_if(version)
            return self.classifier.undo(_Impatient(), expected).step

    def _current_if(self, version: str) -> VersionRef | None:
        """The current version, if it is this one: by its name, or just its number."""
        current = self.classifier.current
        if current is None or version in (self.version, str(current.number)):
            return current
        last = f": {described(self.classifier.version.step)}" if self.last_step else ""
        raise Refusal(
            409,
            f"nothing was undone: the model was changed, and its last step is now another{last}",
        )

    def forget(self, name: str, for_good: bool) -> "Forgotten":
        """Remove a class; for good, with all older versions, also one that only these hold."""
        with self._alone("a class is being forgotten"):
            if not for_good:
                self._require_class(name)
            return self.classifier.forget(name, for_good=for_good, progress=_Impatient())

    def rename(self, old: str, new: str) -> None:
        new = check_name(new)
        with self._alone("a class is being renamed"):
            self._require_class(old)
            with self.staging.renaming(old, new):
                self.classifier.rename(old, new, _Impatient())

    def export(self, int8: bool) -> tuple[ExitStack, Path]:
        """The model as an .onnx file, after the stack that removes that file when closed."""
        with self._alone("the model is being exported"), ExitStack() as made:
            self._require_taught()
            file = Path(made.enter_context(TemporaryDirectory(prefix="dafuse-"))) / "model.onnx"
            with self.classifier.folder.changing(_Impatient()):  # else it may change on the way
                self.classifier.follow()
                self.classifier.export(file, int8)
            return made.pop_all(), file

    def _require_taught(self) -> None:
        if not self.classifier.classes:
            raise Refusal(409, "the model has learned nothing yet: teach it first")

    def _require_class(self, name: str) -> None:
        if composed(name) not in map(composed, self.classifier.classes):
            raise Refusal(404, f"no class is called {name!r}")

    def stop(self, patience: float = 1.5) -> bool:
        """Break off the lesson, which leaves the model as it was; return whether it has ended."""
        if self.job is None or self._thread is None:
            return True
        self.job.stopped |= self.job.state == "running"
        self.job.progress.stop()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def lost(self) -> str:
        """Say in words what `stop` lost: the lesson, images that wait; empty: nothing."""
        said, waiting = [], sum(self.staging.counts.values())
        if self.job is not None and self.job.stopped:
            state, current = self.job.state, self.classifier.folder.current_if_any()
            if state == "running":  # in a step that nobody waits for, with its images
                waiting += sum(self.job.images.values())
            now = f"at version {current.number}" if current else "not readable"
            now = "as it was" if current == self.job.before else now
            how = "finished" if state == "done" else "broken off"
            said.append(f"the lesson was {how}, the model is {now}")
        if waiting:
            are = "is" if waiting == 1 else "are"
            said.append(f"{counted(waiting, 'image')} not yet learned {are} gone")
        return "; ".join(said)

    def _claim(self, doing: str) -> None:
        if not self._changing.acquire(blocking=False):
            raise Refusal(409, f"{self._doing}: wait until it is done")
        self._doing = doing

    @contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        """Let the block change the model, as it is now, and nobody else."""
        self._claim(doing)
        try:
            self.classifier.follow()
            yield
        finally:
            self._changing.release()

    def _learn(self, job: Job, taken: Staged, flip: bool | None) -> None:
        try:
            job.report = self._taught(taken, flip, job.progress)
            taken.clear()
        except LessonStopped:
            job.error = "the server was stopped; the model is as it was"
        except DafuseError as error:
            job.error = without_path(str(error), self.classifier)
        except Exception as error:  # the server lives on, whatever a lesson runs into
            log.exception("a lesson failed")
            job.error = f"the lesson failed ({type(error).__name__}); the model is as it was"
        finally:
            if taken:
                self.staging.put_back(taken)
            gc.collect()  # so that the images are gone now, and not some time later
            job.state, job.ended = "failed" if job.error else "done", time.monotonic()
            self._metrics.count("lessons_total", outcome=job.state)
            self._changing.release()

    def _taught(self, taken: Staged, flip: bool | None, progress: LessonProgress) -> dict[str, Any]:
        images = [image for some in taken.values() for image in some]
        labels = [name for name, some in taken.items() for _ in some]
        report = self.classifier.learn(images, labels, flip=flip, progress=progress)
        return {**asdict(report), "lines": report.lines()}


def without_path(sentence: str, classifier: "Classifier") -> str:
    """Put the model's name for its path, which is nobody's business beyond this machine."""
    path = str(classifier.folder.path)
    return sentence.replace(path, Path(path).resolve().name) if os.sep in path else sentence

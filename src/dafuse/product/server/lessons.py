"""Learning in the background: one lesson at a time, while the model goes on predicting."""

import gc
import logging
import time
from dataclasses import asdict, dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Literal

from dafuse.errors import DafuseError
from dafuse.product.server.limits import Refusal
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.staging import Staged, Staging
from dafuse.product.server.timing import LessonProgress, LessonStopped
from dafuse.product.summary import describe
from dafuse.product.version import Parent
from dafuse.progress import Progress

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier

log = logging.getLogger("dafuse.server")


@dataclass
class Job:
    number: int
    pictures: dict[str, int]  # of each class
    progress: LessonProgress
    before: Parent | None  # what the model was at
    stopped: bool = False  # the server ended while it was under way
    state: Literal["running", "done", "failed"] = "running"
    report: dict[str, Any] | None = None
    error: str | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.progress.began


class _Impatient(Progress):
    """Does not wait for another process that changes the model: a request has no time for it."""

    def waits(self, line: str) -> None:
        raise Refusal(409, "another process is changing the model: try again when it is done")


class Lessons:
    """A classifier that is taught and undone through the server."""

    def __init__(self, classifier: "Classifier", staging: Staging, metrics: Metrics) -> None:
        self.classifier, self.staging, self._metrics = classifier, staging, metrics
        self.job: Job | None = None
        self._changing = Lock()  # held by the lesson or the undo that is under way
        self._thread: Thread | None = None
        metrics.gauge("staged_pictures", lambda: sum(staging.counts.values()))
        metrics.gauge("learning", self._changing.locked)

    def start(self, flip: bool | None = None) -> Job:
        """Learn what is staged; ``flip``: mirrored, too; None: as in the lesson before."""
        self._claim()
        taken = self.staging.take()
        if not taken:
            self._changing.release()
            raise Refusal(409, "no pictures wait to be learned: send some to /classes/NAME/images")
        number = 1 if self.job is None else self.job.number + 1
        trains = len(taken.keys() - set(self.classifier.classes)) > 1
        counts = {name: len(pictures) for name, pictures in taken.items()}
        self.job = Job(number, counts, LessonProgress(trains), self.classifier.folder.head_if_any())
        # a daemon, so that a lesson that hangs cannot keep the server from ending
        self._thread = Thread(
            target=self._learn, args=(self.job, taken, flip), daemon=True, name="learn"
        )
        self._thread.start()
        return self.job

    @property
    def last_step(self) -> str | None:
        """What undo would take back, in a line."""
        version = self.classifier.version
        return describe(version) if version.parent is not None else None

    @property
    def version(self) -> str | None:
        """By which `undo` knows the last step; to be read before `last_step`.

        The number alone comes again, when a step is undone and another follows.
        """
        head = self.classifier.head
        return None if head is None else f"{head.number}-{head.sha256[:12]}"

    def undo(self, version: str | None = None) -> str:
        """Take back the last step, of this version if one is given; which one that was."""
        self._claim()
        try:
            self.classifier.follow()
            expected = None if version is None else self._head_if(version)
            return describe(self.classifier.undo(_Impatient(), expected))
        finally:
            self._changing.release()

    def _head_if(self, version: str) -> Parent | None:
        """What the model is at, if that is this version: its name, or just its number."""
        head, current = self.classifier.head, self.version
        if head is None or version in (current, str(head.number)):
            return head
        last = f": {self.last_step}" if self.last_step else ""
        raise Refusal(
            409,
            f"nothing was undone: the model was changed, and its last step is now another{last}",
        )

    def stop(self, patience: float = 1.5) -> bool:
        """Break off the lesson, which leaves the model as it was; whether it ended in time."""
        if self.job is None or self._thread is None:
            return True
        self.job.stopped |= self.job.state == "running"
        self.job.progress.stop()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def lost(self) -> str:
        """After `stop`: what became of the lesson, and which pictures go; empty: neither."""
        said, waiting = [], sum(self.staging.counts.values())
        if self.job is not None and self.job.stopped:
            state, head = self.job.state, self.classifier.folder.head_if_any()
            if state == "running":  # in a step that nobody waits for, with its pictures
                waiting += sum(self.job.pictures.values())
            now = f"at version {head.number}" if head else "not readable"
            now = "as it was" if head == self.job.before else now
            how = "finished" if state == "done" else "broken off"
            said.append(f"the lesson was {how}, the model is {now}")
        if waiting:
            pictures = "1 picture" if waiting == 1 else f"{waiting} pictures"
            said.append(f"{pictures} not yet learned {'is' if waiting == 1 else 'are'} gone")
        return "; ".join(said)

    def _claim(self) -> None:
        if not self._changing.acquire(blocking=False):
            raise Refusal(409, "a lesson is being learned: wait until it is done")

    def _learn(self, job: Job, taken: Staged, flip: bool | None) -> None:
        try:
            job.report = self._taught(taken, flip, job.progress)
            taken.clear()
        except LessonStopped:
            job.error = "the server was stopped; the model is as it was"
        except DafuseError as error:
            job.error = str(error)
        except Exception as error:  # the server lives on, whatever a lesson runs into
            log.exception("a lesson failed")
            job.error = f"the lesson failed ({type(error).__name__}); the model is as it was"
        finally:
            if taken:
                self.staging.put_back(taken)
            gc.collect()  # so that the pictures are gone now, and not some time later
            job.state, job.ended = "failed" if job.error else "done", time.monotonic()
            self._metrics.count("lessons_total", outcome=job.state)
            self._changing.release()

    def _taught(self, taken: Staged, flip: bool | None, progress: LessonProgress) -> dict[str, Any]:
        images = [image for pictures in taken.values() for image in pictures]
        labels = [name for name, pictures in taken.items() for _ in pictures]
        report = self.classifier.learn(images, labels, flip=flip, progress=progress)
        found = {**asdict(report), "lines": report.lines()}
        few = {one.name: one.how_sure() for one in report.few}
        for one in found["classes"]:
            one["how_sure"] = few.get(one["name"])
        return found

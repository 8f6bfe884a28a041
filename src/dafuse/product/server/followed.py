"""An exported file that is served, and taken up again whenever it was replaced.

served = FollowedFile("pets.onnx", lambda: ExportedModel("pets.onnx"))
with served.watching(): ...
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np

from dafuse.errors import DafuseError
from dafuse.product.predictor import ExportedModel
from dafuse.wording import counted

log = logging.getLogger("dafuse.server")
EVERY = 1.0  # seconds between two looks at the file
Stamp = tuple[int, ...]


class FollowedFile:
    """An .onnx file; what is in it now, opened whole, answers until another is open.

    A thread looks at the file, so that answers never wait for it. A changed file is opened when two
    looks found it the same: until then somebody may be writing it.
    """

    def __init__(self, file: str | Path, open_it: Callable[[], ExportedModel]) -> None:
        self._file, self._open_it = Path(file).expanduser(), open_it
        self._seen = _stamp(self._file)  # before it is opened: a change on the way is found later
        self._model = open_it()

    @property
    def model(self) -> ExportedModel:
        """The version that answers now. It never changes."""
        return self._model

    @property
    def classes(self) -> list[str]:
        return self._model.classes

    def follow(self) -> None:
        """Do nothing: `watching` does it, beside the answers."""

    @contextmanager
    def watching(self, every: float = EVERY) -> Iterator[None]:
        """Take up what the file is changed to, while the block lasts."""
        ended = Event()
        thread = Thread(target=self._watch, args=(ended, every), name="follow", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()  # onnxruntime must not be opening a file when Python ends

    def _watch(self, ended: Event, every: float) -> None:
        before = self._seen
        while not ended.wait(every):
            stamp = _stamp(self._file)
            if stamp is not None and stamp == before and stamp != self._seen:
                self._take_up(stamp)
            before = stamp

    def _take_up(self, stamp: Stamp) -> None:
        name = self._file.name
        try:
            model = self._open_it()
            _require_answer(model)
        except (DafuseError, OSError, MemoryError) as error:
            if _stamp(self._file) == stamp:  # else it is being changed again
                self._seen = stamp
                log.warning("%s has changed, and the model before it goes on: %s", name, error)
            return
        if _stamp(self._file) == stamp:
            self._seen, self._model = stamp, model
            many = counted(len(model.classes), "class", "classes")
            log.info("%s has changed: now version %s, %s", name, model.card.model_version, many)


def _require_answer(model: ExportedModel) -> None:
    """Raise if it cannot answer; its first image also takes longer than all others."""
    side = model.card.preprocessing.size
    model.predict(np.zeros((side, side, 3), np.uint8))


def _stamp(file: Path) -> Stamp | None:
    """Return what differs after each change of a file; None: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )

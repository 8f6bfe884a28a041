"""Images that wait to be learned, by class: decoded, in memory only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np

from dafuse.data.class_names import check_class_names, composed, taught_name
from dafuse.data.images import UnreadableImage
from dafuse.errors import DafuseError
from dafuse.product.server.security import Refusal
from dafuse.product.server.uploads import NoImage, Sent

Staged = dict[str, list[np.ndarray]]  # class name -> uint8 [H, W, 3] of each image


class Staging:
    """Images that wait to be learned, by class: pixels in memory, gone once they are learned.

    The dictionary is replaced as a whole and never changed, so that it may be read at any moment.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()  # held by whoever replaces what is staged
        self._staged: Staged = {}

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(images) for name, images in self._staged.items()}

    def add(
        self,
        name: str,
        sent: Sent,
        found: Sequence[np.ndarray | UnreadableImage],
        known: Sequence[str],
    ) -> tuple[int, list[str]]:
        """Stage for a class what was found of the images that were sent.

        Return how many images the class has now, and a sentence on each file left out.
        """
        name = check_name(name)
        placed = sent.placed(found)
        images = [one for one in placed if not isinstance(one, NoImage)]
        with self._lock:
            _check_clashes([*map(composed, known), *self._staged, name])
            self.require_place(len(images))
            self._staged = _joined(self._staged, {name: images})
            staged = len(self._staged[name])
        return staged, [one.sentence for one in placed if isinstance(one, NoImage)]

    def drop(self, name: str) -> int:
        """Delete the images of a class; return how many there were."""
        name = composed(name)
        with self._lock:
            if name not in self._staged:
                raise Refusal(404, f"no images of {name!r} wait to be learned")
            left = dict(self._staged)
            dropped = left.pop(name)
            self._staged = left
            return len(dropped)

    @contextmanager
    def renaming(self, old: str, new: str) -> Iterator[None]:
        """Let the images of a class follow it, which the block renames.

        Names that clash are refused before the block. Where the block raises, nothing is changed.
        """
        old, new = composed(old), composed(new)
        with self._lock:
            others = dict(self._staged)
            moved = {new: others.pop(old)} if old in others else {}
            _check_clashes([*others, new])
            yield
            self._staged = _joined(others, moved)

    def take(self) -> Staged:
        """Return all images; none stays here."""
        with self._lock:
            taken, self._staged = dict(self._staged), {}
            return taken

    def put_back(self, taken: Staged) -> None:
        """Stage again what a lesson that failed had taken, before what came meanwhile."""
        with self._lock:
            self._staged = _joined(taken, self._staged)

    def require_place(self, more: int) -> None:
        """Refuse so many images where they are too many."""
        waiting = sum(len(images) for images in self._staged.values())
        if waiting + more > self._most:
            raise Refusal(
                413, f"{waiting} images wait to be learned, of at most {self._most}: learn first"
            )


def _joined(first: Staged, then: Staged) -> Staged:
    """The images of both, as a new dictionary of new lists."""
    return {name: [*first.get(name, ()), *then.get(name, ())] for name in {**first, **then}}


def check_name(name: str) -> str:
    """Return the name as the model keeps it; refuse one that no class can have."""
    try:
        return taught_name(name)
    except DafuseError as error:
        raise Refusal(422, str(error)) from None


def _check_clashes(names: Sequence[str]) -> None:
    try:
        check_class_names(names, "the model and the lesson")
    except DafuseError as error:
        raise Refusal(422, str(error)) from None

"""Pictures that wait to be learned, by class: pixels in memory, gone once they are learned."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from PIL import Image

from dafuse.data.images import UnreadableImage, read_image
from dafuse.data.names import check_class_names, composed, taught_name
from dafuse.errors import DafuseError
from dafuse.product.server.limits import Refusal
from dafuse.product.server.uploads import Upload

# A picture is kept no larger than this: networks look at 64 to 518 pixels a side, and a thousand
# photographs as they come from a camera would take 36 GB.
KEPT_PIXELS = 2**19

Staged = dict[str, list[np.ndarray]]  # class name -> uint8 [H, W, 3] of each picture


class Staging:
    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._staged: Staged = {}

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: len(pictures) for name, pictures in self._staged.items()}

    def add(self, name: str, uploads: Sequence[Upload], known: Sequence[str]) -> int:
        """Decode these and put them to the class, all or none; how many it has now."""
        name = check_name(name)
        self._require_place(len(uploads))
        pictures = [_pixels(upload) for upload in uploads]
        with self._lock:
            _check_clashes([*map(composed, known), *self._staged, name])
            self._require_place(len(uploads))
            self._staged.setdefault(name, []).extend(pictures)
            return len(self._staged[name])

    def drop(self, name: str) -> int:
        name = composed(name)
        with self._lock:
            if name not in self._staged:
                raise Refusal(404, f"no pictures of {name!r} wait to be learned")
            return len(self._staged.pop(name))

    def take(self) -> Staged:
        """All of them; they are no longer here."""
        with self._lock:
            taken, self._staged = self._staged, {}
            return taken

    def put_back(self, taken: Staged) -> None:
        """After a lesson that failed; what came meanwhile stays behind them."""
        with self._lock:
            for name, pictures in self._staged.items():
                taken.setdefault(name, []).extend(pictures)
            self._staged = taken

    def _require_place(self, more: int) -> None:
        waiting = sum(len(pictures) for pictures in self._staged.values())
        if waiting + more > self._most:
            raise Refusal(
                413, f"{waiting} pictures wait to be learned, of at most {self._most}: learn first"
            )


def check_name(name: str) -> str:
    """The name as the model keeps it."""
    try:
        return taught_name(name)
    except DafuseError as error:
        raise Refusal(422, str(error)) from None


def _check_clashes(names: Sequence[str]) -> None:
    try:
        check_class_names(names, "the model and the lesson")
    except DafuseError as error:
        raise Refusal(422, str(error)) from None


def _pixels(upload: Upload) -> np.ndarray:
    try:
        pixels_HW3 = read_image(upload.data)
    except UnreadableImage as error:
        raise Refusal(422, f"{upload.name} cannot be read: {error}") from None
    height, width = pixels_HW3.shape[:2]
    if height * width <= KEPT_PIXELS:
        return pixels_HW3
    scale = (KEPT_PIXELS / (height * width)) ** 0.5
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(pixels_HW3)
    return np.array(image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0))

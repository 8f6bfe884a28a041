"""Many images to pixels, in threads: some at a time, or all of a source."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from dafuse.data.dataset import Item, Items
from dafuse.data.images import AnyImage, UnreadableImage, pixels_of
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from dafuse.progress import Progress

AnyImages = AnyImage | Iterable[AnyImage]
Result = TypeVar("Result")
AT_ONCE = 32  # images decoded and computed together: memory stays the same however many there are
WAITING = 16  # images that are fetched together from elsewhere, where threads mostly wait
NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)  # stands where an image could not be read


def as_list(images: AnyImages) -> list[AnyImage]:
    """Return a list of one image or of many; an array of four dimensions is many."""
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | Path | bytes | StoredImage | Image.Image):
        return [images]
    return list(images)


def read_all(
    images: Sequence[AnyImage],
    cut: Callable[[np.ndarray], Any] | None = None,
    threads: int | None = None,
) -> list[Any]:
    """Read each image; return its pixels, or what `cut` makes of them, or why it is unreadable."""

    def attempt(image: AnyImage) -> Any:
        try:
            pixels_HW3 = pixels_of(image)
        except UnreadableImage as error:
            return error
        return pixels_HW3 if cut is None else cut(pixels_HW3)

    at_once = threads or os.cpu_count() or 1
    if any(isinstance(one, StoredImage) and one.is_remote for one in images):
        at_once = max(at_once, WAITING)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(attempt, images))


def in_parts(
    images: Sequence[AnyImage],
    at_once: int,
    compute: Callable[[list[Any]], Iterable[Result]],
    cut: Callable[[np.ndarray], Any] | None = None,
    threads: int | None = None,
) -> Iterator[Result | UnreadableImage]:
    """Yield what is computed from each image, or why it cannot be read.

    ``at_once`` images are decoded together. Whole photographs take much memory, so ``cut`` can take
    what is needed of each as soon as it is read.
    """
    for start in range(0, len(images), at_once):
        read = read_all(images[start : start + at_once], cut, threads)
        pixels = [one for one in read if not isinstance(one, UnreadableImage)]
        results = iter(compute(pixels) if pixels else ())
        for one in read:
            yield one if isinstance(one, UnreadableImage) else next(results)


def require_read(
    images: Sequence[AnyImage], results: Iterable[Result | UnreadableImage]
) -> list[Result]:
    """Return the results of all images; refuse, by name, the first that could not be read."""
    read: list[Result] = []
    for number, (image, one) in enumerate(zip(images, results, strict=True)):
        if isinstance(one, UnreadableImage):
            what = image if isinstance(image, str | Path) else f"image {number}"
            raise DafuseError(f"{what} cannot be read: {one}")
        read.append(one)
    return read


@dataclass(frozen=True)
class Decoded:
    """The result of decoding all items of a source."""

    images: list[np.ndarray] | np.ndarray | None
    """One for each item (`NO_PIXELS` where unreadable); None when they were too much to keep."""
    sizes: np.ndarray
    """Height and width of each, int64 [N, 2], also of those not kept; 0 where unreadable."""
    unreadable: dict[int, str]
    """Position in the items -> why that file gives no pixels."""


def decode_all(items: Items, workers: int, progress: Progress, max_bytes: int) -> Decoded:
    """Decode every file, with threads, to find the broken ones and to have the pixels at hand.

    Past `max_bytes` of pixels the rest are still verified, but none are kept.
    """
    if isinstance(items, np.ndarray):
        sizes_N2 = np.tile(np.array(items.shape[1:3], dtype=np.int64), (len(items), 1))
        return Decoded(items if items.nbytes <= max_bytes else None, sizes_N2, {})
    too_much = Event()
    images: list[np.ndarray] = []
    sizes_N2 = np.zeros((len(items), 2), dtype=np.int64)
    unreadable: dict[int, str] = {}
    total_bytes = 0
    with progress.bar("decode images", len(items)) as bar:
        for position, one in enumerate(_decode_each(items, workers, too_much)):
            sizes_N2[position] = one.size
            if one.reason:
                unreadable[position] = one.reason
            total_bytes += one.pixels.nbytes
            if total_bytes > max_bytes:
                too_much.set()
                images.clear()
            if not too_much.is_set():
                images.append(one.pixels)
            bar.advance()
    return Decoded(None if too_much.is_set() else images, sizes_N2, unreadable)


class _One(NamedTuple):
    pixels: np.ndarray
    size: tuple[int, int] = (0, 0)
    reason: str = ""


def _decode_each(items: Sequence[Item], workers: int, drop_pixels: Event) -> Iterator[_One]:
    """Yield pixels, or the reason why there are none, in the order of the items."""

    def decode(item: Item) -> _One:
        try:
            image = item if isinstance(item, np.ndarray) else pixels_of(item)
        except UnreadableImage as error:
            return _One(NO_PIXELS, reason=str(error))
        return _One(NO_PIXELS if drop_pixels.is_set() else image, image.shape[:2])

    pool = ThreadPoolExecutor(max(1, workers))
    try:
        yield from pool.map(decode, items)
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for all that is queued

"""Pixels of images as people have them: paths, Pillow images, arrays, bytes of files."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from dafuse.data.images import UnreadableImage, read_image, to_rgb
from dafuse.errors import DafuseError

Picture = str | Path | bytes | Image.Image | np.ndarray  # an array is uint8 [H, W, 3] or [H, W]
Pictures = Picture | Iterable[Picture]
Found = TypeVar("Found")
GRIDS = (1, 2, 3, 5, 8, 13, 21, 34)  # of coloured squares: a picture of each, from plain to busy
AT_ONCE = 32  # images decoded and computed together: memory stays the same however many there are


def as_list(images: Pictures) -> list[Picture]:
    """A list of one image or of many; an array of four dimensions is many."""
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    return [images] if isinstance(images, str | Path | bytes | Image.Image) else list(images)


def pixels_of(image: Picture) -> np.ndarray:
    """uint8 [H, W, 3]. Raises `UnreadableImage` with a short reason."""
    if isinstance(image, Image.Image):
        return to_rgb(image.copy())
    if not isinstance(image, np.ndarray):
        return read_image(image)
    if image.dtype != np.uint8:
        raise UnreadableImage(f"pixels must be uint8 (0 to 255), not {image.dtype}")
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise UnreadableImage(f"pixels must have the shape [H, W, 3], not {list(image.shape)}")
    return image


def read_all(
    images: Sequence[Picture],
    cut: Callable[[np.ndarray], Any] | None = None,
    threads: int | None = None,
) -> list[Any]:
    """The pixels of each image, or what is cut of them, or why it cannot be read; by threads."""

    def attempt(image: Picture) -> Any:
        try:
            pixels_HW3 = pixels_of(image)
        except UnreadableImage as error:
            return error
        return pixels_HW3 if cut is None else cut(pixels_HW3)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(attempt, images))


def in_parts(
    images: Sequence[Picture],
    at_once: int,
    compute: Callable[[list[Any]], Iterable[Found]],
    cut: Callable[[np.ndarray], Any] | None = None,
    threads: int | None = None,
) -> Iterator[Found | UnreadableImage]:
    """What is computed from each image, or why it cannot be read; so many are decoded together.

    Whole photographs take much memory: what is needed of them can be cut as soon as they are read.
    """
    for start in range(0, len(images), at_once):
        read = read_all(images[start : start + at_once], cut, threads)
        pixels = [one for one in read if not isinstance(one, UnreadableImage)]
        found = iter(compute(pixels) if pixels else ())
        for one in read:
            yield one if isinstance(one, UnreadableImage) else next(found)


def require_read(
    images: Sequence[Picture], found: Iterable[Found | UnreadableImage]
) -> list[Found]:
    """What was found for each image. Refuses, by name, the first that could not be read."""
    read: list[Found] = []
    for number, (image, one) in enumerate(zip(images, found, strict=True)):
        if isinstance(one, UnreadableImage):
            what = image if isinstance(image, str | Path) else f"image {number}"
            raise DafuseError(f"{what} cannot be read: {one}")
        read.append(one)
    return read


def made_up(size: int) -> np.ndarray:
    """Float pixels [N, 3, S, S], 0 to 255: grids of random colours, the same ones every time."""
    rng = np.random.default_rng(0)
    which = [np.arange(size) * grid // size for grid in GRIDS]
    grids = [rng.random((3, grid, grid), dtype=np.float32) for grid in GRIDS]
    return np.stack([255 * one[:, at][:, :, at] for one, at in zip(grids, which, strict=True)])

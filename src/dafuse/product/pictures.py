"""Images as people have them (paths, Pillow images, arrays, bytes of files), to pixels."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.folders import files_to_test, folder
from dafuse.data.images import UnreadableImage, read_image, to_rgb
from dafuse.data.names import check_class_names, taught_name
from dafuse.errors import DafuseError

Picture = str | Path | bytes | Image.Image | np.ndarray  # an array is uint8 [H, W, 3] or [H, W]
Pictures = Picture | Iterable[Picture]
MISSING = {"None", "nan", "NaT", "<NA>"}  # as numpy and pandas have them
Found = TypeVar("Found")


def as_list(images: Pictures) -> list[Picture]:
    """One image or many, as many; an array of four dimensions is many."""
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


def lesson_images(images: Pictures, labels: Sequence[str] | np.ndarray | None) -> Dataset:
    """What is to be learned: a folder of class folders, or images with a class name each.

    Of a folder that comes with a test part, that part is left out. Files are not decoded yet.
    """
    if labels is None:
        if not isinstance(images, str | Path):
            raise DafuseError("images need labels: a class name for each of them")
        found = folder(images, test_fraction=0.0)
        names = [found.classes[label] for label in found.train.labels]
        return _lesson(list(found.train.items), names)
    given = as_list(images)
    if isinstance(labels, str | bytes):
        raise DafuseError(f"labels must be a list with a class name for each image, not {labels!r}")
    names = [_name(label, number) for number, label in enumerate(labels)]
    if len(given) != len(names) or not names:
        raise DafuseError(f"one label for each image is needed: {len(given)} and {len(names)}")
    return _lesson([_item(image, number) for number, image in enumerate(given)], names)


def images_to_test(root: str | Path) -> Dataset:
    """The test part of a folder that has one, else all its images; as the training images.

    Some of its classes may have no image.
    """
    files = files_to_test(root)
    items: list[Path | np.ndarray] = [image for images in files.values() for image in images]
    return _dataset(
        list(files), items, np.repeat(range(len(files)), list(map(len, files.values())))
    )


def read_all(images: Sequence[Picture]) -> list[np.ndarray | UnreadableImage]:
    """The pixels of each image, or why it has none; files are read by several threads."""

    def attempt(image: Picture) -> np.ndarray | UnreadableImage:
        try:
            return pixels_of(image)
        except UnreadableImage as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(attempt, images))


def in_parts(
    images: Sequence[Picture],
    at_once: int,
    compute: Callable[[list[np.ndarray]], Iterable[Found]],
) -> Iterator[Found | UnreadableImage]:
    """What is computed of each image, or why it has no pixels; so many are decoded together."""
    for start in range(0, len(images), at_once):
        read = read_all(images[start : start + at_once])
        pixels = [one for one in read if isinstance(one, np.ndarray)]
        found = iter(compute(pixels) if pixels else ())
        for one in read:
            yield one if isinstance(one, UnreadableImage) else next(found)


def require_read(
    images: Sequence[Picture], found: Iterable[Found | UnreadableImage]
) -> list[Found]:
    """What was found for each image; the first that could not be read is named."""
    read: list[Found] = []
    for number, (image, one) in enumerate(zip(images, found, strict=True)):
        if isinstance(one, UnreadableImage):
            what = image if isinstance(image, str | Path) else f"image {number}"
            raise DafuseError(f"{what} cannot be read: {one}")
        read.append(one)
    return read


def is_missing(label: object) -> bool:
    return not isinstance(label, str) and str(label) in MISSING


def _name(label: object, number: int) -> str:
    """A label may be a number, but not one of the values that stand for none."""
    if is_missing(label):
        raise DafuseError(f"image {number} has no label: {label} stands for none")
    return str(label)


def _item(image: Picture, number: int) -> Path | np.ndarray:
    if isinstance(image, str | Path):
        return Path(image).expanduser()
    try:
        return pixels_of(image)
    except UnreadableImage as error:
        raise DafuseError(f"image {number} cannot be read: {error}") from None


def _lesson(items: list[Path | np.ndarray], names: list[str]) -> Dataset:
    """Images of the classes that a model may be taught."""
    as_kept = {name: taught_name(name) for name in sorted(set(names))}
    classes = sorted(set(as_kept.values()))
    check_class_names(classes, "the lesson")
    label_of = {name: classes.index(kept) for name, kept in as_kept.items()}
    return _dataset(classes, items, np.array([label_of[name] for name in names]))


def _dataset(classes: list[str], items: list[Path | np.ndarray], labels: np.ndarray) -> Dataset:
    everything = ImageSet(items, labels)
    return Dataset("lesson", classes, everything, everything.take(np.zeros(0, dtype=np.int64)))

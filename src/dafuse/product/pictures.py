"""What is to be learned or tested: images with the names of their classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.folders import files_to_test, folder
from dafuse.data.images import UnreadableImage
from dafuse.data.names import check_class_names, taught_name
from dafuse.data.pictures import Picture, Pictures, as_list, pixels_of
from dafuse.errors import DafuseError

MISSING = {"None", "nan", "NaT", "<NA>"}  # as numpy and pandas have them


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

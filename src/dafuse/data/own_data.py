"""A person's own data: images with the names of their classes, to be taught or to test with.

They are in memory, or at a path: class folders, a table of paths and labels, an .npz of pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dafuse.data.arrays import arrays_part
from dafuse.data.class_names import check_class_names, taught_name
from dafuse.data.dataset import Dataset, ImageSet, Item, Listed, Part, Skipped
from dafuse.data.decoding import AnyImages, as_list
from dafuse.data.folders import folder_part
from dafuse.data.formats import looks_like_an_image
from dafuse.data.images import AnyImage, UnreadableImage, pixels_of
from dafuse.data.remote import is_url
from dafuse.data.remote_folders import remote_folder_part, remote_kind
from dafuse.data.stored import StoredImage
from dafuse.data.tables import table_part
from dafuse.data.tars import holds_tars, names_tars, tar_part
from dafuse.errors import DafuseError

KINDS = {".csv": "table", ".parquet": "table", ".pq": "table", ".npz": "arrays"}
WANTED = (
    "a folder with a folder for each class, a .csv or .parquet of paths and labels, .tar files of "
    "images and labels, or an .npz"
)
MISSING = {"None", "nan", "NaT", "<NA>"}  # as numpy and pandas have them


def kind_of(path: str | Path) -> str | None:
    """Return the kind of source at the path or URL; None if there is none."""
    if is_url(path):
        return remote_kind(str(path))
    source = Path(path).expanduser()
    if source.is_dir():
        return "tars" if holds_tars(source) else "folder"
    if names_tars(source.name):
        return "tars"
    return KINDS.get(source.suffix.lower()) if source.is_file() else None


def part_of(path: str | Path, part: Part) -> Listed:
    """Return the training or the test images of a source; all of them if it is not split."""
    if path == "":
        raise DafuseError("the path of the images is empty: give one (. is the current folder)")
    source, kind = Path(path).expanduser(), kind_of(path)
    if kind == "folder":
        return folder_part(source, part)
    if kind == "table":
        return table_part(path, part)
    if kind == "tars":
        return tar_part(str(path if is_url(path) else source), part)
    if kind == "classes":
        return remote_folder_part(str(path), part)
    if kind == "arrays":
        return arrays_part(source, part)
    if not source.exists():
        raise DafuseError(f"there is no folder {source}, nor a file: check the path")
    what = "one image" if looks_like_an_image(source.name) else "none of these"
    raise DafuseError(f"give {WANTED}; {source} is {what}")


def lesson_images(
    images: AnyImages | Dataset, labels: Sequence[str] | np.ndarray | None
) -> Dataset:
    """Return the images of a lesson: of a source at a path, a data set, or images with labels.

    The test part of a source is not learned. Files are not decoded yet, except the first that can
    be: if there is none, the lesson is refused.
    """
    if isinstance(images, Dataset):
        train = images.train
        names = [images.classes[label] for label in train.labels]
        return _lesson(Listed([train.items[int(i)] for i in train.index], names, images.skipped))
    if labels is None:
        if not isinstance(images, str | Path):
            raise DafuseError("images need labels: a class name for each of them")
        return _lesson(part_of(images, "train"))
    items = as_list(images)
    if isinstance(labels, str | bytes):
        raise DafuseError(f"labels must be a list with a class name for each image, not {labels!r}")
    names = [_name(label, number) for number, label in enumerate(labels)]
    if len(items) != len(names) or not names:
        raise DafuseError(f"one label for each image is needed: {len(items)} and {len(names)}")
    return _lesson(Listed([_item(image, number) for number, image in enumerate(items)], names, []))


def images_to_test(source: str | Path) -> Dataset:
    """Return the test part of a source that has one, else all its images."""
    listed = part_of(source, "test")
    label_of = {name: label for label, name in enumerate(dict.fromkeys(listed.names))}
    return _dataset(list(label_of), listed, [label_of[name] for name in listed.names])


def is_missing(label: object) -> bool:
    return not isinstance(label, str) and str(label) in MISSING


def _name(label: object, number: int) -> str:
    """Return the label as text; refuse a value that stands for no label."""
    if is_missing(label):
        raise DafuseError(f"image {number} has no label: {label} stands for none")
    return str(label)


def _item(image: AnyImage, number: int) -> Item:
    if isinstance(image, StoredImage) or is_url(image):
        return image if isinstance(image, StoredImage) else StoredImage(str(image))
    if isinstance(image, str | Path):
        return Path(image).expanduser()
    try:
        return pixels_of(image)
    except UnreadableImage as error:
        raise DafuseError(f"image {number} cannot be read: {error}") from None


def _lesson(listed: Listed) -> Dataset:
    """Return the lesson of these images; refuse class names that no model takes."""
    as_kept = {name: taught_name(name) for name in sorted(set(listed.names))}
    classes = sorted(set(as_kept.values()))
    check_class_names(classes, "the lesson")
    _require_readable(listed.items)
    label_of = {name: classes.index(kept) for name, kept in as_kept.items()}  # of each spelling
    return _dataset(classes, listed, [label_of[name] for name in listed.names])


def _require_readable(items: Sequence[Item] | np.ndarray) -> None:
    """Refuse images of which none can be read, before a model is made for them."""
    skipped = []
    for item in items:
        try:
            pixels_of(item)
            return
        except UnreadableImage as error:
            skipped.append(Skipped(str(item), str(error)))
    raise none_readable(skipped)


def none_readable(skipped: Sequence[Skipped]) -> DafuseError:
    return DafuseError(f"none of the images can be read: {'; '.join(map(str, skipped[:3]))}")


def _dataset(classes: list[str], listed: Listed, labels: list[int]) -> Dataset:
    everything = ImageSet(list(listed.items), np.array(labels, dtype=np.int64))
    nothing = everything.take(np.zeros(0, dtype=np.int64))
    return Dataset("lesson", classes, everything, nothing, skipped=listed.skipped)

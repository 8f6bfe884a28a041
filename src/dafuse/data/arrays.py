"""Images that are already pixels in memory, or in one .npz file.

A small .npz may hold far more than there is memory for, or say that it does: its arrays are read
once their headers have told how much they take.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from dafuse.data.class_names import check_class_names
from dafuse.data.dataset import Dataset, ImageSet, Listed, Part, no_test_part
from dafuse.data.splits import check_test_classes, first_few
from dafuse.errors import DafuseError
from dafuse.wording import first_line

NAMES = ("classes", "class_names")  # either holds the names that labels are numbers of
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
SMALL = 2**30  # bytes that any file may hold
EXPANDED = 100  # how many times its own size a larger one may hold; photographs hardly shrink
OF_AN_ENTRY = 200  # bytes that an image or a name takes beside its pixels or characters
KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy writes them
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray | Sequence[int] | Sequence[str],
    test_images: np.ndarray,
    test_labels: np.ndarray | Sequence[int] | Sequence[str],
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset:
    """Images given as arrays of pixels.

    Args:
        train_images: uint8 pixels [N, H, W, 3] in RGB, or [N, H, W] in gray.
        train_labels: one for each training image: 0..C-1, or class names.
        test_images: as the training images.
        test_labels: as the training labels.
        classes: class names in their order; if not given, the sorted names or the numbers.
        name: what to call the data set.
    """
    train_pixels = _pixels(train_images, "train_images")
    test_pixels = _pixels(test_images, "test_images")
    train_names = _labels(train_labels, "train_labels", len(train_pixels))
    test_names = _labels(test_labels, "test_labels", len(test_pixels))
    if not len(train_names):
        raise DafuseError("train_images is empty: there is nothing to learn from")
    if len(test_names) and train_names.dtype.kind != test_names.dtype.kind:
        raise DafuseError("train_labels and test_labels must both be numbers or both be names")
    known = None if classes is None else _names(classes)
    if train_names.dtype.kind == "U":
        known = sorted(set(train_names.tolist())) if known is None else known
    elif known is None:
        # a number for each image at most, or some class would have no training image
        known = [str(number) for number in range(min(int(train_names.max()), len(train_names)) + 1)]
    _require_different(known)
    check_class_names(known, "classes")
    train = ImageSet(train_pixels, _numbered(train_names, known, "train_labels"))
    test = ImageSet(test_pixels, _numbered(test_names, known, "test_labels"))
    trained = {known[label] for label in np.unique(train.labels)}
    check_test_classes(trained, (known[label] for label in np.unique(test.labels)), name)
    if untrained := [each for each in known if each not in trained]:
        raise DafuseError(
            f"no training image of the class {first_few(untrained)}: "
            "add some, or leave these classes out and number the labels without gaps"
        )
    return Dataset(name, known, train, test)


def arrays_file(file: str | Path) -> Dataset:
    """Images in one .npz file of pixels and labels.

    Args:
        file: .npz of train_images, train_labels, test_images, test_labels and perhaps classes
            (or class_names).
    """
    source = Path(file).expanduser()
    return arrays(**_contents(source, [KEYS]), name=source.stem)


def arrays_part(file: str | Path, part: Part) -> Listed:
    """The training or the test images of an .npz.

    To test with, the training images will do where there are no others; that is said.
    """
    source = Path(file).expanduser()
    contents = _contents(source, [KEYS[:2]] if part == "train" else [KEYS[:2], KEYS[2:]])
    has_train, has_test = (contents.keys() >= set(keys) for keys in (KEYS[:2], KEYS[2:]))
    tests = has_test and (len(contents["test_images"]) or not has_train)
    key = "test" if part == "test" and tests else "train"
    pixels = _pixels(contents[f"{key}_images"], f"{key}_images")
    labels = _labels(contents[f"{key}_labels"], f"{key}_labels", len(pixels))
    if not len(labels):
        raise DafuseError(f"{source} has no images: {key}_images is empty")
    if labels.dtype.kind != "U" and "classes" in contents:
        classes = _names(contents["classes"])
        _require_different(classes)
        names = [classes[label] for label in _numbered(labels, classes, f"{key}_labels")]
    else:
        names = [str(label) for label in labels.tolist()]
    skipped = [] if key == part else [no_test_part("images", source.name)]
    return Listed(pixels, names, skipped)


def _contents(source: Path, needed: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Read the known arrays of an .npz, which must have all of one of these lists."""
    names_there = names_in(source)
    if not any(set(keys) <= set(names_there) for keys in needed):
        raise _lacks(source, [key for key in needed[-1] if key not in names_there], names_there)
    names = next((key for key in NAMES if key in names_there), None)
    wanted = [key for key in KEYS if key in names_there]
    contents = read_npz(source, wanted if names is None else [*wanted, names])
    return contents if names is None else {**contents, "classes": contents.pop(names)}


def _lacks(source: Path, missing: list[str], there: list[str]) -> DafuseError:
    return DafuseError(
        f"{source} lacks {first_few(missing, 4)}, it has {first_few(there, 8) or 'nothing'}: "
        f"save {', '.join(KEYS)} with np.savez"
    )


def _names(classes: Sequence[Any] | np.ndarray) -> list[str]:
    if np.ndim(classes) != 1:
        raise DafuseError(
            f"classes must be a list of names, not of the shape {list(np.shape(classes))}"
        )
    try:
        return [each.decode() if isinstance(each, bytes) else str(each) for each in classes]
    except (ValueError, SystemError) as error:  # neither UTF-8 nor characters that there are
        raise DafuseError(f"a class name is no text: {error}") from None


def _require_different(classes: list[str]) -> None:
    if len(set(classes)) < len(classes) or not all(classes):
        raise DafuseError("classes must be different names, none of them empty")


def _pixels(images: np.ndarray, key: str) -> np.ndarray:
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8:
        raise DafuseError(f"{key} must be uint8 (0 to 255), not {pixels.dtype}: convert it")
    if pixels.ndim == 3:
        pixels = np.repeat(pixels[..., None], 3, axis=3)
    if pixels.ndim != 4 or pixels.shape[3] != 3 or 0 in pixels.shape[1:]:
        shape = list(pixels.shape)
        raise DafuseError(f"{key} must have the shape [N, H, W, 3] or [N, H, W], not {shape}")
    return pixels


def _labels(labels: np.ndarray | Sequence[int] | Sequence[str], key: str, count: int) -> np.ndarray:
    """The labels as int64 numbers or as text."""
    values = np.asarray(labels)
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        values = values.astype(str)
    if values.shape != (count,):
        shape = list(values.shape)
        raise DafuseError(f"{key} must be one label for each of {count} images, not {shape}")
    if values.dtype.kind in "iu":
        if count and values.max() > np.iinfo(np.int64).max:
            raise DafuseError(f"{key} must be below 2**63, but go up to {values.max()}")
        return values.astype(np.int64)
    if values.dtype.kind == "U" or not count:
        names = values.astype(str)
        _names(names)
        return names
    raise DafuseError(f"{key} must be whole numbers or class names, not {values.dtype}")


def _numbered(names: np.ndarray, classes: list[str], key: str) -> np.ndarray:
    """The labels as positions in classes."""
    if names.dtype.kind == "U":
        label_of = {name: label for label, name in enumerate(classes)}
        if unknown := sorted(set(names.tolist()) - set(classes)):
            raise DafuseError(f"{key} has {first_few(unknown)}, which is not one of the classes")
        return np.array([label_of[name] for name in names.tolist()], dtype=np.int64)
    if len(names) and (names.min() < 0 or names.max() >= len(classes)):
        raise DafuseError(
            f"{key} must lie in 0..{len(classes) - 1} ({len(classes)} classes), "
            f"but go from {names.min()} to {names.max()}"
        )
    return names


def names_in(source: Path) -> list[str]:
    """Return the names of the arrays in the file."""
    with _opened(source) as archive:
        return list(_members(archive))


def read_npz(source: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read the arrays of these names; refuse objects, and more than fits, before reading them."""
    with _opened(source) as archive:
        members = {name: _members(archive)[name] for name in names}
        on_disk = source.stat().st_size
        _require_size(sum(one.file_size for one in members.values()), on_disk)
        entries = sum(_entries(archive, member, name) for name, member in members.items())
        size = sum(member.file_size for member in members.values()) + OF_AN_ENTRY * entries
        _require_size(size, on_disk)
        contents = {}
        for name, member in members.items():
            with archive.open(member) as file:
                contents[name] = npy.read_array(file, allow_pickle=False)
        return contents


@contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive, and say in a sentence whatever is wrong with it."""
    if not source.is_file():
        raise DafuseError(f"there is no file {source}: check the path")
    with source.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DafuseError(f"{source} holds one array: save all four with np.savez")
    try:
        with zipfile.ZipFile(source) as archive:
            yield archive
    except Exception as error:  # damaged archives make Python and numpy raise almost anything
        reason = first_line(error)
        if not zipfile.is_zipfile(source):
            reason = "it is no .npz archive"
        raise DafuseError(f"{source} is not a readable .npz of plain arrays: {reason}") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _require_size(size: int, on_disk: int) -> None:
    if size > max(SMALL, EXPANDED * on_disk):
        raise ValueError(f"its {on_disk:,} bytes would take {size:,} in memory; split it up")


def _entries(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> int:
    """Return how many entries the array has by its header, which must fit what is there."""
    if member.compress_type not in KINDS:
        raise ValueError(f"{name} is not compressed as np.savez_compressed does")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{name} is in the format {version}; save it with np.savez")
        shape, _, dtype = HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if (
            not dtype.itemsize
            or math.prod(shape) * dtype.itemsize != member.file_size - file.tell()
        ):
            raise ValueError(f"{name} is not as large as its header says")
    return shape[0] if shape else 1

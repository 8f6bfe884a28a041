"""Folders of images named by class.

root/<class>/**.jpg                                    split by `test_fraction`
root/train/<class>/**.jpg  root/test/<class>/**.jpg    as it is (also val/ or valid/)
"""

import os
from pathlib import Path
from typing import NoReturn

import numpy as np

from dafuse.data.dataset import Dataset
from dafuse.data.images import IMAGE_SUFFIXES
from dafuse.data.names import check_class_names
from dafuse.data.splits import check_test_classes, divide, first_few, split_per_class
from dafuse.errors import DafuseError

HELD_OUT = ("test", "val", "valid")  # the first of these beside train/ holds the test images


def folder(root: str | Path, test_fraction: float = 0.2, split_seed: int = 0) -> Dataset:
    """Images in folders named by class.

    Args:
        root: folder of class folders, or of train/ and test/ (or val/, valid/) with class folders.
        test_fraction: share of each class held out for testing, where there is no test/ folder.
        split_seed: which images those are.
    """
    top = _existing(root)
    train, test = _train_and_test(top)
    files = _images_by_class(train)
    check_class_names(files, train)
    if empty := [name for name, images in files.items() if not images]:
        raise DafuseError(
            f"no images in the class folder {first_few(empty)} of {train}: fill it or remove it "
            f"(images end in {' '.join(sorted(IMAGE_SUFFIXES))})"
        )
    classes = list(files)
    paths, labels = _flatten(files, classes)
    if test is None:
        is_test = split_per_class(labels, classes, test_fraction, split_seed)
    else:
        test_files = _images_by_class(test)
        check_test_classes(files, test_files, top)
        test_paths, test_labels = _flatten(test_files, classes)
        is_test = np.arange(len(paths) + len(test_paths)) >= len(paths)
        paths, labels = paths + test_paths, np.concatenate([labels, test_labels])
    return divide(top.resolve().name, classes, paths, labels, is_test)


def files_to_test(root: str | Path) -> dict[str, list[Path]]:
    """The images of each class in the test part of a folder that has one, else in all of it.

    Nothing is learned from them, so classes may be without training images, or without any.
    """
    train, test = _train_and_test(_existing(root))
    files = _images_by_class(train if test is None else test)
    if not any(files.values()):
        raise DafuseError(f"there is no image in the class folders of {test or train}")
    return files


def _existing(root: str | Path) -> Path:
    top = Path(root).expanduser()
    if not top.exists():
        raise DafuseError(f"there is no folder {top}: check the path")
    if not top.is_dir():
        raise DafuseError(f"{top} is a file, not a folder: give the folder of the class folders")
    return top


def _train_and_test(top: Path) -> tuple[Path, Path | None]:
    """The folders of class folders: two where the root comes split, else the root itself."""
    inside = {path.name.lower(): path for path in _folders(top)}
    train = inside.get("train")
    if train is None:
        return top, None
    for name in HELD_OUT:
        if name in inside:
            return train, inside[name]
    # A lone train/ is a class (of railway pictures) only if it holds pictures, not class folders.
    if _folders(train) and not _has_images(train):
        raise DafuseError(
            f"{top} has {train.name}/ but no test/, val/ or valid/ beside it: "
            f"add one, or give {train} itself"
        )
    return top, None


def _images_by_class(top: Path) -> dict[str, list[Path]]:
    """Every class folder's images, both in ASCII order whatever the file system's is."""
    class_folders = _folders(top)
    if not class_folders:
        found = "its images lie directly in it" if _has_images(top) else "it is empty"
        raise DafuseError(
            f"no class folder in {top}, {found}: "
            "put the images of each class into a folder named after the class"
        )
    return {path.name: images_below(path) for path in class_folders}


def images_below(top: Path) -> list[Path]:
    """The images in a folder and all folders in it, hidden ones left out, in ASCII order."""
    images = []
    for here, below, names in os.walk(top, onerror=_unreadable, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        images += [Path(here, name) for name in names if _is_image(name)]
    return sorted(images, key=lambda path: path.relative_to(top).as_posix())


def _folders(top: Path) -> list[Path]:
    try:
        paths = [path for path in top.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError as error:
        _unreadable(error)
    return sorted(paths, key=lambda path: path.name)


def _has_images(top: Path) -> bool:
    return any(_is_image(path.name) and path.is_file() for path in top.iterdir())


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _unreadable(error: OSError) -> NoReturn:
    raise DafuseError(f"cannot read the folder {error.filename}: {error.strerror}")


def _flatten(files: dict[str, list[Path]], classes: list[str]) -> tuple[list[Path], np.ndarray]:
    label_of = {name: label for label, name in enumerate(classes)}
    paths = [path for images in files.values() for path in images]
    labels = [label_of[name] for name, images in files.items() for _ in images]
    return paths, np.array(labels, dtype=np.int64)

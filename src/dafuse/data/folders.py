"""Folders of images named by class.

root/<class>/**.jpg                                    split by `test_fraction`
root/train/<class>/**.jpg  root/test/<class>/**.jpg    as it is (also val/ or valid/)

Each real folder is read once, however many links lead to it.
"""

import os
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from dafuse.data.class_names import check_class_names
from dafuse.data.dataset import Dataset, Listed, Part, Skipped, in_few_lines
from dafuse.data.formats import is_image, looks_like_an_image, readable_suffixes, why_not_read
from dafuse.data.splits import check_test_classes, divide, first_few, split_per_class
from dafuse.errors import DafuseError

MADE_BY_THE_SYSTEM = ("thumbs.db", "desktop.ini")  # hidden, where they come from
HIDDEN = "a folder whose name begins with a dot is not looked at"
BACK = "a link to a folder that it lies in is not followed"
AGAIN = "a link to a folder that is read where it lies is not followed"
AWAY = "a link out of the class folder is not followed; put the images themselves there"
NOWHERE = "a link that leads nowhere"
TWICE = "the same folder as"
Met = dict[Path, Path]  # each folder that was read, without links: the path it was read by
TEST_FOLDERS = ("test", "val", "valid")  # the first of these beside train/ holds the test images


def folder(root: str | Path, test_fraction: float = 0.2, split_seed: int = 0) -> Dataset:
    """Images in folders named by class.

    Args:
        root: folder of class folders, or of train/ and test/ (or val/, valid/) with class folders.
        test_fraction: share of each class held out for testing, where there is no test/ folder.
        split_seed: which images those are.
    """
    top = _existing(root)
    train, test, _ = _train_and_test(top)
    files = _strictly_by_class(train)
    check_class_names(files, train)
    if empty := [name for name, images in files.items() if not images]:
        raise DafuseError(
            f"no images in the class folder {first_few(empty)} of {train}: fill it or remove it "
            f"(images end in {' '.join(sorted(readable_suffixes()))})"
        )
    classes = list(files)
    paths, labels = _flatten(files, classes)
    if test is None:
        is_test = split_per_class(labels, classes, test_fraction, split_seed)
    else:
        test_files = _strictly_by_class(test)
        check_test_classes(files, test_files, top)
        test_paths, test_labels = _flatten(test_files, classes)
        is_test = np.arange(len(paths) + len(test_paths)) >= len(paths)
        paths, labels = paths + test_paths, np.concatenate([labels, test_labels])
    return divide(top.resolve().name, classes, paths, labels, is_test)


def folder_part(root: str | Path, part: Part) -> Listed:
    """The training or the test images of a folder; all of them where it does not come split.

    A class folder may be empty: its class is skipped.
    """
    train, test, beside = _train_and_test(_existing(root))
    top = test if part == "test" and test is not None else train
    files, skipped = _images_by_class(top)
    skipped = [*beside, *skipped]
    empty = [name for name, images in files.items() if not images]
    if len(empty) == len(files):
        raise DafuseError(
            f"there is no image in the class folders of {top}"
            + "".join(f"; {line}" for line in in_few_lines(skipped))
            + f"; images end in {' '.join(sorted(readable_suffixes()))}"
        )
    skipped += [Skipped(name, "no images in this class folder") for name in empty]
    paths, labels = _flatten(files, list(files))
    return Listed(paths, [list(files)[label] for label in labels], skipped)


def _existing(root: str | Path) -> Path:
    top = Path(root).expanduser()
    if not top.exists():
        raise DafuseError(f"there is no folder {top}: check the path")
    if not top.is_dir():
        raise DafuseError(f"{top} is a file, not a folder: give the folder of the class folders")
    return top


class _Parts(NamedTuple):
    """The folders of the class folders, and what lies beside them and is skipped."""

    train: Path
    test: Path | None
    beside: list[Skipped]


def _train_and_test(top: Path) -> _Parts:
    """The folders of class folders: two where the root comes split, else the root itself."""
    inside = {path.name.lower(): path for path in _folders(_listed(top))}
    train = inside.get("train")
    if train is None:
        return _Parts(top, None, [])
    for name in TEST_FOLDERS:
        if name in inside:
            return _Parts(train, inside[name], _beside(top, train, inside[name]))
    # A lone train/ is a class (images of trains) only if it holds images, not class folders.
    paths = _listed(train)
    if _folders(paths) and not _images(paths):
        raise DafuseError(
            f"{top} has {train.name}/ but no test/, val/ or valid/ beside it: "
            f"add one, or give {train} itself"
        )
    return _Parts(top, None, [])


def _beside(top: Path, train: Path, test: Path) -> list[Skipped]:
    """Folders and images in a root that comes split, which are in neither part."""
    paths = _listed(top)
    others = [path.name for path in _folders(paths) if path not in (train, test)]
    others += [str(path) for path in _images(paths)]
    skipped = [Skipped(name, f"beside {train.name}/ and {test.name}/") for name in others]
    return skipped + _hidden(paths)


def _strictly_by_class(top: Path) -> dict[str, list[Path]]:
    """Every class folder's images; refuse links that are not followed."""
    files, skipped = _images_by_class(top)
    if links := [one for one in skipped if is_link(one)]:
        raise DafuseError(f"{links[0]}; remove the link")
    return files


def _images_by_class(top: Path) -> tuple[dict[str, list[Path]], list[Skipped]]:
    """Return the images of every class folder, and the skipped files.

    Both are in ASCII order, whatever the file system's is.
    """
    paths = _listed(top)
    class_folders, beside = _folders(paths), _images(paths)
    if not class_folders:
        instead = "there are only other files in it" if paths else "it is empty"
        instead = "its images lie directly in it" if beside else instead
        raise DafuseError(
            f"no class folder in {top}, {instead}: "
            "put the images of each class into a folder named after the class"
        )
    skipped = [Skipped(str(path), "lies in no class folder") for path in beside]
    skipped += [Skipped(str(path), NOWHERE) for path in paths if leads_nowhere(path)]
    skipped += _hidden(paths)
    files: dict[str, list[Path]] = {}
    met: Met = {}
    for path in sorted(class_folders, key=Path.is_symlink):  # a link may lead to another class
        if why := why_not_entered(path, real(top), met, away=True):
            skipped.append(Skipped(str(path), why))
            continue
        files[path.name], others = images_below(path, met, away=False)
        skipped += others
    return {name: files[name] for name in sorted(files)}, skipped


def _listed(top: Path) -> list[Path]:
    """Return all that lies directly in a folder, in order of name."""
    try:
        return sorted(top.iterdir(), key=lambda path: path.name)
    except OSError as error:
        unreadable(error)


def _folders(paths: list[Path], hidden: bool = False) -> list[Path]:
    try:
        return [path for path in paths if path.is_dir() and path.name.startswith(".") == hidden]
    except OSError as error:
        unreadable(error)


def _hidden(paths: list[Path]) -> list[Skipped]:
    return [Skipped(str(path), HIDDEN) for path in _folders(paths, hidden=True)]


def _images(paths: list[Path]) -> list[Path]:
    """Return the files that people would call images, whether or not they can be read here."""
    visible = [path for path in paths if not path.name.startswith(".")]
    return [path for path in visible if looks_like_an_image(path.name) and path.is_file()]


def _flatten(files: dict[str, list[Path]], classes: list[str]) -> tuple[list[Path], np.ndarray]:
    label_of = {name: label for label, name in enumerate(classes)}
    paths = [path for images in files.values() for path in images]
    labels = [label_of[name] for name, images in files.items() for _ in images]
    return paths, np.array(labels, dtype=np.int64)


def images_below(
    top: Path, met: Met | None = None, away: bool = True
) -> tuple[list[Path], list[Skipped]]:
    """Return the images in a folder and all folders in it, and what is skipped, in ASCII order.

    Hidden files are ignored. Links to files count as files.

    Args:
        top: the folder
        met: folders that were read before, and are not read again
        away: whether links to folders elsewhere are followed
    """
    met = {} if met is None else met
    real_top = real(top)
    met.setdefault(real_top, top)
    images: list[Path] = []
    others: list[Skipped] = []
    for folder_path, below, names in os.walk(top, onerror=unreadable, followlinks=True):
        entered = []
        for path in (Path(folder_path, name) for name in sorted(below)):
            why = why_not_entered(path, real_top, met, away)
            if why is None:
                entered.append(path.name)
            elif why != AGAIN:
                others.append(Skipped(str(path), why))
        below[:] = entered
        for path in (Path(folder_path, name) for name in names):
            if is_image(path.name):
                images.append(path)
            elif not path.name.startswith(".") and path.name.lower() not in MADE_BY_THE_SYSTEM:
                others.append(Skipped(str(path), why_not_read(path.name)))
    others.sort(key=lambda one: Path(one.name).as_posix())
    return sorted(images, key=Path.as_posix), others


def why_not_entered(path: Path, real_top: Path, met: Met, away: bool) -> str | None:
    """Say why a folder below ``real_top`` is skipped; None for one to read now, which is noted."""
    if path.name.startswith("."):
        return HIDDEN
    target = real(path)
    if path.is_symlink():
        if real_top.is_relative_to(target):
            return BACK
        if target.is_relative_to(real_top):
            if not any(part.startswith(".") for part in target.relative_to(real_top).parts):
                return AGAIN
        elif not away:
            return AWAY
    if target in met:
        return f"{TWICE} {met[target]}"
    met[target] = path
    return None


def is_link(one: Skipped) -> bool:
    """Tell whether it was skipped because of a link."""
    return one.why in (BACK, AGAIN, AWAY, NOWHERE) or one.why.startswith(TWICE)


def leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def real(path: Path) -> Path:
    """The path without links."""
    return Path(os.path.realpath(path))


def unreadable(error: OSError) -> NoReturn:
    raise DafuseError(f"cannot read the folder {error.filename}: {error.strerror}")

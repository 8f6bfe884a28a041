"""A table of image paths and labels: CSV, or parquet with the extra `tables`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from dafuse.data.class_names import check_class_names
from dafuse.data.columns import MOST_BYTES, read_columns
from dafuse.data.dataset import Dataset, Item, Listed, Part, Skipped, no_test_part
from dafuse.data.remote import is_url, read_whole
from dafuse.data.splits import check_test_classes, divide, first_few, split_per_class
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError

COLUMNS = ("path", "label", "split")
SPLIT_NAMES = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}


def table(
    file: str | Path,
    root: str | Path | None = None,
    path_column: str = "path",
    label_column: str = "label",
    split_column: str = "split",
    test_fraction: float = 0.2,
    split_seed: int = 0,
) -> Dataset:
    """Images listed in a CSV or parquet table with a path and a label in each row.

    Args:
        file: the table, .csv (with a header line) or .parquet.
        root: folder that the paths are relative to; the table's own folder if not given.
        path_column: column of the image paths.
        label_column: column of the class names.
        split_column: column that says train, test or val, if any; without test rows, val is test.
        test_fraction: share of each class held out for testing, where there is no split column.
        split_seed: which images those are.
    """
    rows = _rows(Path(file).expanduser(), path_column, label_column, split_column)
    paths = _existing(rows, root)
    names = rows.names
    check_class_names(sorted(set(names)), rows.source)
    if rows.parts is not None:
        parts = _with_training(rows)
        used = [row for row, part in enumerate(parts) if part != "val"]
        is_test = np.array([parts[row] == "test" for row in used], dtype=bool)
        paths, names = [paths[row] for row in used], [names[row] for row in used]
        trained = {name for name, held_out in zip(names, is_test, strict=True) if not held_out}
        check_test_classes(trained, names, rows.source)
    classes = _in_order(set(names))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[name] for name in names], dtype=np.int64)
    if rows.parts is None:
        is_test = split_per_class(labels, classes, test_fraction, split_seed)
    _check_disjoint(paths, is_test, rows.source)
    return divide(rows.source.stem, classes, paths, labels, is_test)


def table_part(file: str | Path, part: Part) -> Listed:
    """The training or the test images of a table; all of them where it has no such column.

    To test with, the training images will do where there are no others; that is said.
    """
    rows, base = _rows_of(file)
    skipped: list[Skipped] = []
    if rows.parts is not None:
        parts = rows.parts if part == "test" else _with_training(rows)
        wanted = part if part in parts else "train"
        if wanted != part:
            skipped.append(no_test_part("rows", rows.source.name))
        used = [row for row, its_part in enumerate(parts) if its_part == wanted]
        taken = [[column[row] for row in used] for column in (rows.paths, rows.names)]
        rows = rows._replace(paths=taken[0], names=taken[1])
    return Listed(_items(rows, base), rows.names, skipped)


def _rows_of(file: str | Path) -> tuple["_Rows", str]:
    """Return the rows of a table, and the URL of its folder; "" for one on this machine."""
    if not is_url(file):
        return _rows(Path(file).expanduser(), *COLUMNS), ""
    url = str(file)
    try:
        content = read_whole(url, MOST_BYTES)
    except (FileNotFoundError, PermissionError):
        raise DafuseError(f"there is no table {url}, or it may not be read") from None
    except ValueError as error:
        raise DafuseError(f"{url}: {error}") from None
    with TemporaryDirectory() as folder:
        copy = Path(folder) / url.rpartition("/")[2]
        copy.write_bytes(content)
        try:
            rows = _rows(copy, *COLUMNS)
        except DafuseError as error:
            raise DafuseError(str(error).replace(str(copy), url)) from None
    return rows, url.rpartition("/")[0] + "/"


def _items(rows: "_Rows", base: str) -> list[Item]:
    """Return the images; a path is relative to the table, and may be a URL."""
    if base:
        texts = [text if is_url(text) else base + text for text in rows.paths]
        return [StoredImage(text) for text in texts]
    here = [row for row, text in enumerate(rows.paths) if not is_url(text)]
    items: list[Item] = [StoredImage(text) for text in rows.paths]
    found = _existing(rows._replace(paths=[rows.paths[row] for row in here]), None)
    for row, path in zip(here, found, strict=True):
        items[row] = path
    return items


class _Rows(NamedTuple):
    """A table's columns, as text."""

    source: Path
    paths: list[str]
    names: list[str]
    parts: list[str] | None  # train, test or val; None: there is no such column


def _rows(source: Path, path_column: str, label_column: str, split_column: str) -> _Rows:
    all_names, columns = read_columns(source, (path_column, label_column, split_column))
    for column in (path_column, label_column):
        if column not in columns:
            raise DafuseError(
                f"{source} has no column {column!r}, its columns are "
                f"{first_few(all_names, 8) or 'none'}: call them path and label in a header "
                "line (dafuse run takes other names by --data.path-column and --data.label-column)"
            )
    names = columns[label_column]
    if not names:
        raise DafuseError(f"{source} has no rows: list one image in each")
    for column, what in ((path_column, "path"), (label_column, "label")):
        if empty := [row for row, text in enumerate(columns[column], start=1) if not text]:
            raise DafuseError(
                f"{source} has {len(empty)} row(s) without a {what} (the first is row {empty[0]} "
                "below the header): fill them in or remove them"
            )
    parts = None
    if split_column in columns:
        parts = _parts(columns[split_column], split_column, source)
    return _Rows(source, columns[path_column], names, parts)


def _existing(rows: _Rows, root: str | Path | None) -> list[Path]:
    base = rows.source.parent if root is None else Path(root).expanduser()
    paths = [base / text for text in rows.paths]
    if missing := [path for path in paths if not _is_file(path)]:
        raise DafuseError(
            f"{len(missing)} of the {len(paths)} images in {rows.source} do not exist, "
            f"e.g. {first_few(missing)}: correct them; paths are relative to the table's folder "
            "(for dafuse run, or to --data.root)"
        )
    return paths


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long or of no file, a folder that may not be read
        return False


def _parts(texts: list[str], column: str, source: Path) -> list[str]:
    """Return train, test or val for each row; val becomes test if no row is test."""
    for row, text in enumerate(texts, start=1):
        if text.lower() not in SPLIT_NAMES:
            raise DafuseError(
                f"{source} has {text!r} in its column {column!r} (row {row} below the header): "
                "it must be train, test or val"
            )
    parts = [SPLIT_NAMES[text.lower()] for text in texts]
    return parts if "test" in parts else ["test" if part == "val" else part for part in parts]


def _with_training(rows: _Rows) -> list[str]:
    parts = rows.parts or []
    if "train" not in parts:
        raise DafuseError(f"{rows.source} has no train rows: mark some as train")
    return parts


def _in_order(names: set[str]) -> list[str]:
    """Return names in ASCII order, as of folders; numbers by value: class 10 follows class 9."""
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _check_disjoint(paths: list[Path], is_test: np.ndarray, source: Path) -> None:
    train = {path for path, held_out in zip(paths, is_test, strict=True) if not held_out}
    test = {path for path, held_out in zip(paths, is_test, strict=True) if held_out}
    if both := sorted(train & test):
        raise DafuseError(
            f"{source} has {len(both)} images in training and in test, e.g. {first_few(both)}: "
            "list each image once"
        )

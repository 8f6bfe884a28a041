"""A table of image paths and labels: CSV, or parquet with the extra `tables`."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dafuse.data.dataset import Dataset
from dafuse.data.listed import Listed, Part, Skipped, no_test_part
from dafuse.data.names import check_class_names
from dafuse.data.splits import check_test_classes, divide, first_few, split_per_class
from dafuse.errors import DafuseError

DELIMITERS = ",;\t"  # as spreadsheets write them, by country
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
    rows = _rows(Path(file).expanduser(), "path", "label", "split")
    skipped: list[Skipped] = []
    if rows.parts is not None:
        parts = rows.parts if part == "test" else _with_training(rows)
        wanted = part if part in parts else "train"
        if wanted != part:
            skipped.append(no_test_part("rows", rows.source.name))
        used = [row for row, its_part in enumerate(parts) if its_part == wanted]
        taken = [[column[row] for row in used] for column in (rows.paths, rows.names)]
        rows = rows._replace(paths=taken[0], names=taken[1])
    return Listed(_existing(rows, None), rows.names, skipped)


class _Rows(NamedTuple):
    """A table's columns, as text."""

    source: Path
    paths: list[str]
    names: list[str]
    parts: list[str] | None  # train, test or val; None: there is no such column


def _rows(source: Path, path_column: str, label_column: str, split_column: str) -> _Rows:
    if not source.is_file():
        raise DafuseError(f"there is no table {source}: check the path")
    columns = _read(source)
    for column in (path_column, label_column):
        if column not in columns:
            raise DafuseError(
                f"{source} has no column {column!r}, its columns are "
                f"{first_few(list(columns), 8) or 'none'}: call them path and label in a header "
                "line (dafuse run takes other names by --data.path_column and --data.label_column)"
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


def _read(source: Path) -> dict[str, list[str]]:
    """The columns of the table as stripped text; what is missing in a row is empty text."""
    suffix = source.suffix.lower()
    if suffix == ".csv":
        return _read_csv(source)
    if suffix in (".parquet", ".pq"):
        return _read_parquet(source)
    raise DafuseError(f"{source} is neither .csv nor .parquet: convert it to one of them")


def _read_csv(source: Path) -> dict[str, list[str]]:
    try:
        with source.open(newline="", encoding="utf-8-sig") as stream:
            first = stream.readline()
            stream.seek(0)
            reader = csv.DictReader(stream, delimiter=max(DELIMITERS, key=first.count))
            header = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = header
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DafuseError(f"{source} is not a CSV in UTF-8 ({error}): save it as one") from error
    return {name: [(row[name] or "").strip() for row in rows] for name in header}


def _read_parquet(source: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DafuseError(
            f"reading {source} needs pyarrow: pip install 'dafuse[tables]', or give a .csv"
        ) from None
    try:
        contents = parquet.read_table(source)
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DafuseError(f"{source} is not a readable parquet file: {reason}") from error
    return {
        name: ["" if value is None else str(value).strip() for value in column.to_pylist()]
        for name, column in zip(contents.column_names, contents.columns, strict=True)
    }


def _existing(rows: _Rows, root: str | Path | None) -> list[Path]:
    base = rows.source.parent if root is None else Path(root).expanduser()
    paths = [base / text for text in rows.paths]
    if missing := [path for path in paths if not path.is_file()]:
        raise DafuseError(
            f"{len(missing)} of the {len(paths)} images in {rows.source} do not exist, "
            f"e.g. {first_few(missing)}: correct them; paths are relative to the table's folder "
            "(for dafuse run, or to --data.root)"
        )
    return paths


def _parts(texts: list[str], column: str, source: Path) -> list[str]:
    """train, test or val for each row; val becomes test where no row is test."""
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
    """ASCII order, as of folders; numbers by their value, so that class 10 follows class 9."""
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

"""Columns of a .csv or .parquet as text, in memory that is bounded by the size of the file."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from dafuse.errors import DafuseError
from dafuse.wording import first_line

DELIMITERS = ",;\t"  # as spreadsheets write them, by country
MOST_BYTES = 2**30  # bytes of a table
LONGEST = 2**20  # characters of a row
FREE_ROWS = 2_000_000  # that any .parquet may have; in a larger one each takes a byte or more
EXPANDED = 100  # how many times the file's size the columns may have
AT_ONCE = 2**20  # rows of a .parquet


class Columns(NamedTuple):
    """The names of all columns, and the stripped text of the wanted ones."""

    names: list[str]
    texts: dict[str, list[str]]  # "" where a row has none


def read_columns(source: Path, wanted: Sequence[str]) -> Columns:
    """Read the columns of these names that the table has."""
    if not source.is_file():
        raise DafuseError(f"there is no table {source}: check the path")
    suffix = source.suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        raise DafuseError(f"{source} is neither .csv nor .parquet: convert it to one of them")
    if source.stat().st_size > MOST_BYTES:
        raise DafuseError(f"{source} has more than {MOST_BYTES:,} bytes: split it up")
    return _of_csv(source, wanted) if suffix == ".csv" else _of_parquet(source, wanted)


def _of_csv(source: Path, wanted: Sequence[str]) -> Columns:
    try:
        with source.open(newline="", encoding="utf-8-sig") as stream:
            first = stream.readline(LONGEST)
            stream.seek(0)
            rows = _rows(source, stream, max(DELIMITERS, key=first.count))
            names = [name.strip() for name in next(rows, [])]
            _require_once(source, names, wanted)
            place = {name: column for column, name in enumerate(names)}
            texts: dict[str, list[str]] = {name: [] for name in wanted if name in place}
            for row in rows:
                for name, column in texts.items():
                    at = place[name]
                    column.append(row[at].strip() if at < len(row) else "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DafuseError(f"{source} is not a CSV in UTF-8 ({error}): save it as one") from error
    return Columns(names, texts)


def _require_once(source: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a column that is asked for and stands twice: nobody knows which is meant."""
    if twice := [name for name in wanted if names.count(name) > 1]:
        raise DafuseError(f"{source} has two columns {twice[0]!r}: rename or delete one of them")


def _rows(source: Path, stream: IO[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the first row and all others that are not empty; refuse a row without end."""
    length = 0  # of the row that is read

    def lines() -> Iterator[str]:
        nonlocal length
        while line := stream.readline(LONGEST):
            length += len(line)
            if length >= LONGEST:
                raise DafuseError(
                    f"{source} has a row of {LONGEST:,} characters or more: look for a quotation "
                    "mark that is never closed"
                )
            yield line

    for number, row in enumerate(csv.reader(lines(), delimiter=delimiter)):
        length = 0
        if row or not number:
            yield row


def _of_parquet(source: Path, wanted: Sequence[str]) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DafuseError(
            f"reading {source} needs pyarrow: pip install 'dafuse[tables]', or give a .csv"
        ) from None
    try:
        with parquet.ParquetFile(source) as file:
            names = list(file.schema_arrow.names)
            _require_once(source, names, wanted)
            present = [name for name in wanted if name in names]
            text = [name for name in present if _is_text(file.schema_arrow, name)]
            _require_size(file.metadata, present, source.stat().st_size)
        # a text that stands in many rows is read once
        with parquet.ParquetFile(source, read_dictionary=text) as file:
            return Columns(names, _texts_of(file, present, source.stat().st_size))
    except DafuseError:
        raise
    except Exception as error:  # damaged files make pyarrow raise almost anything
        reason = first_line(error)
        raise DafuseError(f"{source} is not a readable parquet file: {reason}") from error


def _is_text(schema: Any, name: str) -> bool:
    """Tell whether the column has texts, or else numbers and the like; refuse other types."""
    from pyarrow import types

    kind = schema.field(schema.get_all_field_indices(name)[-1]).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind):
        return False
    if kind in ("string", "large_string", "binary", "large_binary"):
        return True
    raise ValueError(f"its column {name!r} has the type {kind}, not text or numbers")


def _require_size(metadata: Any, names: Sequence[str], on_disk: int) -> None:
    """Refuse by its metadata what a small file makes very large."""
    if metadata.num_rows > max(FREE_ROWS, on_disk):
        raise ValueError(f"its {on_disk:,} bytes would be {metadata.num_rows:,} rows")
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(group.num_columns))
    size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema in names)
    _require_expanded(size, on_disk)


def _require_expanded(size: int, on_disk: int) -> None:
    if size > max(MOST_BYTES, EXPANDED * on_disk):
        raise ValueError(f"its {on_disk:,} bytes would take {size:,} in memory")


def _texts_of(file: Any, names: Sequence[str], on_disk: int) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {name: [] for name in names}
    size = 0
    for batch in file.iter_batches(AT_ONCE, columns=list(names)):
        batch.validate(full=True)
        size += batch.nbytes
        _require_expanded(size, on_disk)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if hasattr(column, "dictionary"):
                words = list(map(_text, column.dictionary.to_pylist()))
                places = column.indices.to_pylist()
                texts[name] += ["" if place is None else words[place] for place in places]
            else:
                texts[name] += map(_text, column.to_pylist())
    return texts


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()

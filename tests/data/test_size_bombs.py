"""Small data files that hold, or say that they hold, far more than there is memory for."""

import io
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafuse.data import arrays, columns
from dafuse.data.arrays import arrays_file
from dafuse.data.own_data import part_of
from dafuse.data.tables import table
from dafuse.errors import DafuseError

IMAGES = np.zeros((2, 4, 4, 3), np.uint8)
NAMES = np.array(["a", "b"])
MEGABYTE = 2**20


@contextmanager
def frugal(most: int = 20 * MEGABYTE) -> Iterator[None]:
    """Fail where more memory than this is asked for, at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def refused(file: Path) -> str:
    """The one sentence with which a file is refused, as a lesson and as data of a run."""
    said = []
    for read in (
        lambda: part_of(file, "train"),
        lambda: (arrays_file if npz_like(file) else table)(file),
    ):
        with frugal(), pytest.raises(DafuseError) as caught:
            read()
        said.append(str(caught.value))
    assert "\n" not in said[0]
    return said[0]


def npz_like(file: Path) -> bool:
    return file.suffix == ".npz"


def packed(file: Path, **arrays: Any) -> Path:
    """An .npz of these arrays, or of members given as bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (
            {
                "train_images": IMAGES,
                "train_labels": NAMES,
                "test_images": IMAGES,
                "test_labels": NAMES,
            }
            | arrays
        ).items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy(array))
    return file


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape: str, dtype: str = "|u1", data: bytes = bytes(96)) -> bytes:
    """An array whose header says what it wants."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


def test_a_label_is_no_count_of_classes(tmp_path: Path) -> None:
    """The number 4,294,967,295 once made as many names of classes."""
    file = packed(
        tmp_path / "a.npz", train_labels=np.array([0, 2**32 - 1]), test_labels=np.array([0, 0])
    )
    with frugal(), pytest.raises(DafuseError, match="but go from 0 to 4294967295"):
        arrays_file(file)
    assert part_of(file, "train").names == ["0", "4294967295"]
    packed(file, train_labels=np.array([0, 2**64 - 1], np.uint64))
    assert "train_labels must be below 2**63" in refused(file)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_images": header("(1099511627776, 1, 1, 3)")}, "not as large as its header says"),
        ({"train_images": header("(-2, -4, 4, 3)")}, ""),
        ({"train_labels": header("(9000000000000000000,)", "<U0", b"")}, "not as large"),
        ({"train_labels": header("(2,)", "<U2000000000")}, "dtype"),
        ({"train_labels": header("(" * 50)}, ""),
        ({"train_labels": header("(2,)", "|O", pickle.dumps([1, 2]))}, "Python objects"),
        ({"train_labels": header("(2,)", "<U1", b"\xff" * 8)}, "no text"),
        ({"train_labels": b""}, ""),
        ({"train_labels": b"no array"}, ""),
        ({"classes": np.array("cat"), "train_labels": np.array([0, 0])}, "list of names"),
        ({"classes": np.array([b"\xff", b"b"]), "train_labels": np.array([0, 1])}, "no text"),
    ],
)
def test_headers_that_do_not_fit_what_is_there(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    assert said in refused(packed(tmp_path / "a.npz", **changed))


def test_what_expands_too_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "SMALL", MEGABYTE)
    file = packed(tmp_path / "a.npz", train_images=np.zeros((30, 200, 200, 3), np.uint8))
    assert "would take 3,6" in refused(file)
    one_pixel = np.zeros((6000, 1, 1, 3), np.uint8)  # each image is an object, too
    packed(file, train_images=one_pixel, train_labels=np.zeros(6000, np.uint8))
    assert "would take 2,4" in refused(file)


def test_archives_that_numpy_does_not_write(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", kind) as archive:
            for name in ("train_images", "train_labels", "test_images", "test_labels"):
                archive.writestr(f"{name}.npy", npy(IMAGES))
        assert "not compressed as np.savez_compressed does" in refused(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", IMAGES)
    assert "holds one array" in refused((tmp_path / "b.npy").rename(tmp_path / "b.npz"))
    whole = bytearray(packed(tmp_path / "c.npz").read_bytes())
    whole[whole.index(b"PK\1\2") + 8] |= 1  # says that it is encrypted
    (tmp_path / "c.npz").write_bytes(whole)
    assert "not a readable .npz" in refused(tmp_path / "c.npz")


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    payload = Payload(tmp_path / "made")
    (tmp_path / "a.npz").write_bytes(pickle.dumps(payload))
    assert "no .npz archive" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", train_images=IMAGES, train_labels=np.array([payload] * 2))
    with pytest.raises(DafuseError, match="Python objects"):
        part_of(tmp_path / "b.npz", "train")
    assert not payload.target.exists()


# tables


def test_many_columns_of_many_rows_are_not_filled(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    names = ",".join(map(str, range(20_000)))
    rows = "a.png,cat\n" * 2_000
    (tmp_path / "a.csv").write_text(f"path,label,{names}\n{rows}")
    with frugal():
        assert part_of(tmp_path / "a.csv", "train").names == ["cat"] * 2_000


@pytest.mark.parametrize(
    "text", ["," * 2**21, '"\n",' * 2**19, "x" * 2**21, "path,label\n" + '"x",' * 2**19]
)
def test_a_row_without_end(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    said = refused(tmp_path / "a.csv")
    assert "1,048,576 characters or more: look for a quotation mark" in said or (
        "field limit" in said
    )


def test_a_table_larger_than_any(tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "wb") as file:
        file.truncate(2**40)  # takes no place on the disk
    assert "more than 1,073,741,824 bytes: split it up" in refused(tmp_path / "a.csv")


@pytest.mark.parametrize("path", ["x" * 300, "a\0b", "\n", "..", "."])
def test_paths_that_are_of_no_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "a.csv").write_text(f'path,label\n"{path}",cat\n')
    said = refused(tmp_path / "a.csv")
    assert "do not exist" in said or "without a path" in said


def test_parquet_that_expands_too_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    same = pa.array(["a.png"]).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5_000, np.int8)), same.dictionary)
    parquet.write_table(pa.table({"path": column, "label": column}), file)
    monkeypatch.setattr(columns, "FREE_ROWS", 1000)
    assert "bytes would be 5,000 rows" in refused(file)
    monkeypatch.setattr(columns, "FREE_ROWS", 100_000)
    assert "5000 of the 5000 images" in refused(file)
    monkeypatch.setattr(columns, "MOST_BYTES", 200_000)
    monkeypatch.setattr(columns, "EXPANDED", 1)
    parquet.write_table(pa.table({"path": ["x" * 900_000], "label": ["a"]}), file)
    assert "would take 900," in refused(file)


def test_one_long_text_in_many_rows_is_held_once(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "a.png").write_bytes(b"x")
    file = tmp_path / "a.parquet"
    words = pa.array(["c" * 30_000])
    label = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1500, np.int8)), words)
    parquet.write_table(pa.table({"path": ["a.png"] * 1500, "label": label.cast("string")}), file)
    with frugal():
        assert part_of(file, "train").names == ["c" * 30_000] * 1500


def test_columns_that_are_no_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"path": [["a"]], "label": ["b"]}), file)
    assert "its column 'path' has the type list<" in refused(file)
    (tmp_path / "a.png").write_bytes(b"x")
    parquet.write_table(
        pa.table({"path": ["a.png", "a.png"], "label": [1, 2], "x": [[1], [2]]}), file
    )
    assert part_of(file, "train").names == ["1", "2"]

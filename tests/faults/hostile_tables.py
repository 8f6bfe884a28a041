"""Tables and .npz files that must be refused: far too large, of other types, damaged."""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

PIXELS = np.zeros((2, 8, 8, 3), np.uint8)
Table = Callable[[Random, Path], Path]  # writes into a folder that has a.png


class Payload:
    """An object that makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def _npz(random: Random, folder: Path, **changed: Any) -> Path:
    arrays: dict[str, Any] = {"train_images": PIXELS, "train_labels": np.array(["a", "b"])}
    compression = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(folder / "a.npz", "w", compression) as archive:
        for name, array in {**arrays, **changed}.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else _npy(array))
    return folder / "a.npz"


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _header(shape: str, dtype: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


def _claiming(random: Random, folder: Path) -> Path:
    """A header that claims terabytes, entries of no size, or less than nothing."""
    shape = random.choice(["(1099511627776, 1, 1, 3)", f"({10**18},)", "(-2, -96)", "(2, 8, 8, 9)"])
    dtype = random.choice(["|u1", "<U0", "<U500000000", "|V0", "<f8"])
    return _npz(
        random,
        folder,
        **{random.choice(["train_images", "train_labels"]): _header(shape, dtype, bytes(96))},
    )


def _expanding(random: Random, folder: Path) -> Path:
    """A few megabytes that are gigabytes, by deflate alone."""
    data, packed = bytes(2**24), zlib.compressobj(9, zlib.DEFLATED, -15)
    pieces = [packed.compress(_header("(2,)", "|u1"))]
    count = random.choice([80, 100])
    crc = zlib.crc32(_header("(2,)", "|u1"))
    for _ in range(count):
        pieces.append(packed.compress(data))
        crc = zlib.crc32(data, crc)
    body = b"".join([*pieces, packed.flush()])
    return _archive(folder, body, crc, len(_header("(2,)", "|u1")) + count * len(data))


def _archive(folder: Path, body: bytes, crc: int, size: int) -> Path:
    """An archive whose one member says that it has this size."""
    name = b"train_images.npy"
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, crc, len(body), size, len(name), 0)
    start = b"PK\3\4" + fields + name + body
    central = b"PK\1\2" + struct.pack("<H", 20) + fields + bytes(14) + name
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(start), 0)
    (folder / "a.npz").write_bytes(start + central + end)
    with zipfile.ZipFile(folder / "a.npz", "a") as archive:
        archive.writestr("train_labels.npy", _npy(np.array(["a", "b"])))
    return folder / "a.npz"


def _typed(random: Random, folder: Path) -> Path:
    """Arrays of other types and shapes."""
    labels = [
        np.array([1.5, 2.5]), np.array([[1], [2]]), np.array(["a"]), np.array([1, 2j]),
        np.array(["2020-01-01", "2020-01-02"], "M8[D]"), np.array([2**64 - 1, 0], np.uint64),
        np.array([b"\xff", b"a"]), np.array([(1, 2), (3, 4)], "i4,i4"), np.array("a"),
    ]  # fmt: skip
    return _npz(random, folder, train_labels=random.choice(labels))


def _pickled(random: Random, folder: Path) -> Path:
    objects = np.array([Payload(), Payload()])
    if random.random() < 0.5:
        return _npz(random, folder, train_labels=objects)
    (folder / "a.npz").write_bytes(pickle.dumps(objects))
    return folder / "a.npz"


def _damaged_npz(random: Random, folder: Path) -> Path:
    file = _npz(random, folder)
    whole = file.read_bytes()
    file.write_bytes(whole[: random.randint(0, len(whole) - 30)])
    return file


def _bad_name(random: Random, folder: Path) -> Path:
    names = [
        "a\x1b[31m",
        "a\nb",
        "",
        " a",
        "x" * 300,
        "\u202ea",
        "a/b",
        "unknown",
        "../up",
        "\ud800",
    ]
    name = random.choice(names)
    if random.random() < 0.5 and name not in ("", "\ud800"):
        return _npz(random, folder, train_labels=np.array([name, "b"]))
    text = name.encode("utf-8", "surrogatepass").replace(b'"', b'""')
    (folder / "a.csv").write_bytes(
        b'path,label\na.png,"'
        + text.strip(b" ")
        + b'"\n'
        + b"a.png,"
        + (b'"x/y"' if name == " a" else b"b")
        + b"\n"
    )
    return folder / "a.csv"


def _bad_path(random: Random, folder: Path) -> Path:
    paths = [
        "../../../etc/shadow-none",
        "/dev/zero",
        "x" * 5000,
        "\x1b[31m",
        "a\0b",
        "\u202e",
        ".",
        "https://a/b.png",
    ]
    rows = [f'"{random.choice(paths)}",a', "a.png,b"]
    (folder / "a.csv").write_text("\n".join(["path,label", *rows]))
    return folder / "a.csv"


def _bad_csv(random: Random, folder: Path) -> Path:
    contents = [
        b"", b"\n\n\n", b"\0" * 5000, random.randbytes(3000), b"path,label\n" + b"," * 2**21,
        b'path,label\n"' + b"x" * 2**18, b"path,path\na.png,b\n", b"\xff\xfep\0a\0t\0h\0",
        b'path,label\n"a.png,b\n', b"path;label\na.png\n", (b'"\n",' * 2**19), b"x" * 2**22,
    ]  # fmt: skip
    (folder / "a.csv").write_bytes(random.choice(contents))
    return folder / "a.csv"


def _sparse(random: Random, folder: Path) -> Path:
    file = folder / random.choice(["a.csv", "a.npz", "a.parquet"])
    with open(file, "wb") as empty:
        empty.truncate(2**41)
    return file


def _parquet(random: Random, folder: Path) -> Path:
    """A few kilobytes that are very many rows or very long texts, other types, damage."""
    import pyarrow as pa
    from pyarrow import parquet

    file, kind = folder / "a.parquet", random.choice(["rows", "text", "types", "cut", "noise"])
    if kind == "noise":
        file.write_bytes(b"PAR1" + random.randbytes(500) + b"PAR1")
        return file
    count = 2_500_000 if kind == "rows" else 200
    words = ["c" * 10**6 if kind == "text" else "a.png"]
    zeros = pa.array(np.zeros(count, np.int8))
    column = pa.DictionaryArray.from_arrays(zeros, pa.array(words))
    columns = {"path": column, "label": column}
    if kind == "types":
        columns["label"] = random.choice([pa.array([[1]] * count), pa.array([{"a": 1}] * count)])
    parquet.write_table(pa.table(columns), file)
    if kind == "cut":
        whole = file.read_bytes()
        file.write_bytes(whole[: random.randint(0, len(whole) - 1)])
    return file


TABLES: dict[str, Table] = {
    "claiming": _claiming,
    "expanding": _expanding,
    "typed": _typed,
    "pickled": _pickled,
    "damaged": _damaged_npz,
    "names": _bad_name,
    "paths": _bad_path,
    "csv": _bad_csv,
    "sparse": _sparse,
}
if find_spec("pyarrow"):  # an extra
    TABLES["parquet"] = _parquet

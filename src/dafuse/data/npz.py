"""Read arrays of an .npz, once their headers have told how much memory they take.

A small file may hold far more than there is memory for, or say that it does.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from dafuse.errors import DafuseError

SMALL = 2**30  # bytes that any file may hold
EXPANDED = 100  # how many times its own size a larger one may hold; photographs hardly shrink
OF_AN_ENTRY = 200  # bytes that an image or a name takes beside its pixels or characters
KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy writes them
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def names_in(source: Path) -> list[str]:
    """What the arrays in the file are called."""
    with _opened(source) as archive:
        return list(_members(archive))


def read_npz(source: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of these names. Objects, and more than fits, are refused before they are read."""
    with _opened(source) as archive:
        members = {name: _members(archive)[name] for name in names}
        on_disk = source.stat().st_size
        _require_size(sum(one.file_size for one in members.values()), on_disk)
        entries = sum(_entries(archive, member, name) for name, member in members.items())
        size = sum(member.file_size for member in members.values()) + OF_AN_ENTRY * entries
        _require_size(size, on_disk)
        found = {}
        for name, member in members.items():
            with archive.open(member) as file:
                found[name] = npy.read_array(file, allow_pickle=False)
        return found


@contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is wrong with it is said in a sentence."""
    if not source.is_file():
        raise DafuseError(f"there is no file {source}: check the path")
    with source.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DafuseError(f"{source} holds one array: save all four with np.savez")
    try:
        with zipfile.ZipFile(source) as archive:
            yield archive
    except Exception as error:  # damaged archives make Python and numpy raise almost anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not zipfile.is_zipfile(source):
            reason = "it is no .npz archive"
        raise DafuseError(f"{source} is not a readable .npz of plain arrays: {reason}") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _require_size(size: int, on_disk: int) -> None:
    if size > max(SMALL, EXPANDED * on_disk):
        raise ValueError(f"its {on_disk:,} bytes would take {size:,} in memory; split it up")


def _entries(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> int:
    """How many entries the array has by its header, which must fit what is there."""
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

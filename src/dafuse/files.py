"""Files that are either whole or not there: atomic writes, locks, JSON whose damage is named.

write_json(folder / "results.json", results)   # a crash leaves the old file or the new one
results = read_json(folder / "results.json")
with locked(folder / ".lock", busy):            # one process at a time; a crash lets go
    ...
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dafuse.errors import DafuseError

try:
    import fcntl
except ImportError:  # not on Windows; there two processes go unnoticed
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Replace `path` by `data` (text as UTF-8) in one step that survives a crash or a power cut.

    The folder must exist. A link is written through, so that it stays a link.
    """
    target = Path(os.path.realpath(path))
    content = data.encode() if isinstance(data, str) else data
    # Beside the target, since a rename is atomic only within one file system, and opened by name
    # rather than by `tempfile`, whose files nobody but their owner could read.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise DafuseError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    _sync_folder(target.parent)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """`value` as indented JSON. What JSON cannot hold raises before anything is touched.

    NaN and infinities are written as Python reads them, so that numbers come back unchanged.
    """
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def make_folder(path: str | os.PathLike[str]) -> Path:
    """With the folders that it lies in; one that is there already is as good."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DafuseError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    return folder


def require_writable(path: str | os.PathLike[str]) -> None:
    """Say so before long work, not after it, where its results could not be written."""
    target, existed = Path(path), Path(path).exists()
    try:
        with open(target, "ab"):
            pass
    except OSError as error:
        raise DafuseError(f"cannot write {target}: {error.strerror or error}") from error
    if not existed:
        target.unlink()


def read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise DafuseError(f"{path} does not exist") from error
    except OSError as error:
        raise DafuseError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise DafuseError(f"{path} is not whole JSON (cut off or damaged): {error}") from error


@contextmanager
def locked(path: str | os.PathLike[str], busy: Callable[[], None]) -> Iterator[None]:
    """Hold this file's lock, which the system frees when its process ends, however it ends.

    Where another has it, ``busy`` is called, to say so or to raise; after it the lock is waited
    for. Two threads of one process keep each other out as well.
    """
    try:
        file = open(path, "w")  # noqa: SIM115, closed by the next block
    except OSError as error:
        folder = Path(path).parent
        raise DafuseError(f"{folder} cannot be changed: {error.strerror or error}") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                busy()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_leftovers(folder: Path) -> None:
    """Delete what writes that were killed left below this folder; its lock must be held."""
    for leftover in folder.rglob(".*.tmp"):
        leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems and Windows cannot, and need not."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

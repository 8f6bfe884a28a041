"""Files that are either whole or not there: atomic writes, locks, JSON whose damage is named.

write_json(folder / "results.json", results, inside=folder)  # a crash leaves the old or the new
results = read_json(folder / "results.json", inside=folder)
with locked(folder / ".lock", busy):                         # one process at a time
    ...

``inside`` names a folder of ours, a model's or a run's. In it nothing is opened, written or deleted
through a link, since it may lead anywhere: a link is refused by its name. The folder itself may be
reached by one. A file that a person names (no ``inside``) may be a link, and stays one.
"""

import errno
import fnmatch
import glob
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dafuse.errors import DafuseError

Name = str | os.PathLike[str]


def refuse_links(path: Name, inside: Name) -> None:
    """Refuse `path` where it, or a folder on the way to it from the folder `inside`, is a link."""
    place = Path(inside)
    for part in Path(path).relative_to(place).parts:
        place /= part
        if os.path.islink(place):
            or_delete = "" if os.path.exists(place) else ", or delete it, as it leads nowhere"
            raise DafuseError(
                f"{place} is a link, and none is followed inside {inside}: "
                f"put what it leads to in its place{or_delete}"
            )


def open_inside(path: Name, inside: Name, mode: str = "rb") -> IO[Any]:
    """Open a file as `open` does, if it is a plain file with no link on the way (text: UTF-8).

    The folders on the way are looked at before it is opened: one that becomes a link in between is
    followed. The file itself is never followed.
    """
    refuse_links(path, inside)
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_open_plain)


def read_inside(path: Name, inside: Name) -> bytes:
    with open_inside(path, inside) as file:
        content: bytes = file.read()
    return content


def _open_plain(path: str, flags: int) -> int:
    """Open a plain file: no link, no folder, and no pipe, which is not waited for."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "It is not a file", path)


def instead_of_file(path: Name) -> str:
    """Return in words what is there instead of a file; "" for a file, and for nothing."""
    if os.path.isdir(path):
        return "a folder"
    is_other = os.path.exists(path) and not os.path.isfile(path)
    return "no file (a pipe or a device)" if is_other else ""


def write_atomically(path: Name, data: str | bytes, inside: Name | None = None) -> None:
    """Replace `path` by `data` (text as UTF-8) in one step that survives a crash or a power cut.

    The folder must exist. A link that a person named is written through, so that it stays a link.
    """
    if inside is None:
        target = _named(path)
        _remove_abandoned(target)
    else:  # `remove_leftovers` deletes what killed writes left, for whoever holds the lock
        refuse_links(path, inside)
        target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    temporary: Path | None = None
    try:
        with _opened_beside(target) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":  # an open file cannot be moved there; elsewhere it stays locked
                file.close()
            os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError):
            raise DafuseError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    _sync_folder(target.parent)


def _opened_beside(target: Path) -> IO[bytes]:
    """Open a new file that will become the target, locked so that it is not taken for abandoned.

    It lies in the same folder, since a rename is atomic only within one file system. `tempfile`
    does not make it, since nobody but their owner can read its files.
    """
    while True:
        name = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        file = open(name, "xb")  # noqa: SIM115, closed by the caller
        with suppress(OSError):  # a file system without locks: nothing is abandoned there
            _lock(file, wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another writer of the target removed it before it was locked


def _remove_abandoned(target: Path) -> None:
    """Delete what killed writes of this file left beside it. Writes under way hold a lock."""
    pattern = f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.tmp"
    for left in target.parent.glob(pattern):
        with suppress(OSError), open(left, "rb", opener=_open_plain) as file:
            if _lock(file):
                left.unlink()


def _named(path: Name) -> Path:
    """Return the file that a person named, behind its links; refuse to replace a device."""
    target = Path(os.path.realpath(path))
    if what := instead_of_file(target):
        raise DafuseError(f"cannot write {path}: it is {what}")
    return target


def write_json(path: Name, value: Any, inside: Name | None = None) -> None:
    """Write `value` as indented JSON. What JSON cannot hold raises before anything is touched.

    NaN and infinities are written as Python reads them, so that numbers come back unchanged.
    """
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", inside)


def make_folder(path: Name, inside: Name | None = None) -> Path:
    """Make a folder, and those that it lies in, unless it is there already."""
    folder = Path(path)
    if inside is not None:
        refuse_links(folder, inside)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DafuseError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    return folder


def require_writable(path: Name) -> None:
    """Refuse, before long work and not after it, a path that `write_atomically` could not write.

    As that does, it makes another file beside the one to be replaced.
    """
    target = _named(path)
    try:
        with _opened_beside(target) as trial:
            name = trial.name
        os.unlink(name)
    except OSError as error:
        raise DafuseError(f"cannot write {path}: {error.strerror or error}") from error


def read_json(path: Name, inside: Name | None = None) -> Any:
    try:
        content = Path(path).read_bytes() if inside is None else read_inside(path, inside)
    except FileNotFoundError as error:
        raise DafuseError(f"{path} does not exist") from error
    except OSError as error:
        raise DafuseError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_json(content, path)


def parse_json(content: str | bytes, path: object) -> Any:
    """Return the JSON of this file; refuse damage, endless nesting and endless numbers."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise DafuseError(f"{path} is not whole JSON (cut off or damaged): {error}") from error


@contextmanager
def locked(path: Name, busy: Callable[[], None]) -> Iterator[None]:
    """Hold this file's lock, which the system frees when its process ends, however it ends.

    While another holds it, ``busy`` is called, to say so or to raise, and then the lock is waited
    for. Two threads of one process keep each other out as well. The file is in a folder of ours:
    a link is refused, and a file that is not ours keeps its contents.
    """
    folder = Path(path).parent
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_inside(path, folder, "ab"))
            is_free = _lock(file)
        except OSError as error:
            why: object = error.strerror or error
            if error.errno == errno.EROFS:
                why = "the disk is read-only"
            elif what := instead_of_file(path):
                why = f"{path}, a file that dafuse locks, is {what}: delete it"
            raise DafuseError(f"{folder} cannot be changed: {why}") from error
        if not is_free:
            busy()
            _lock(file, wait=True)
        yield


def _lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed; return False where another has locked it."""
    from filelock import lock_descriptor  # 20 ms, which whatever only reads need not wait for

    return lock_descriptor(file.fileno(), blocking=wait)


def remove_leftovers(folder: Path) -> None:
    """Delete what writes that were killed left below this folder; its lock must be held."""
    for place, _, names in os.walk(folder, followlinks=False):
        for name in fnmatch.filter(names, ".*.tmp"):
            os.unlink(os.path.join(place, name))


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable.

    Windows and some file systems sync no folder: a power cut may bring the old file back there.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

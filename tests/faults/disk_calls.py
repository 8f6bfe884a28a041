"""The calls by which a process changes the disk: each is counted, or made to fail, or fatal.

run("learn", model, photos, before=partial(install, Dying(str(model), number=17, midway=True)))

What is watched is opening for writing, writing, fsync, and what changes names: mkdir, replace,
unlink and the like, of Python's own functions, below one folder. Reading is left alone.
"""

import builtins
import errno
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "truncate")
OF_OPEN_FILES = ("fsync", "fdatasync", "ftruncate")
MAKING = ("open", "mkdir", "link", "symlink")  # what a full disk may refuse
PLAIN = {name: getattr(os, name) for name in (*NAMES, *OF_OPEN_FILES, "open", "write")}
PLAIN_OPEN = io.open
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass
class Fault:
    """A fault at a call of the disk. This one lets all of them be."""

    below: str  # the folder; calls elsewhere are left alone

    def around(self, call: "Call") -> Any:
        return call.do()

    def begin(self) -> None:
        """Do what is to be done once, in the process that is watched."""

    def touches(self, path: str) -> bool:
        return f"{os.path.abspath(path)}/".startswith(f"{self.below}/")


@dataclass
class Call:
    name: str
    path: str
    do: Callable[[], Any]
    size: int = 0  # bytes to be written
    do_part: Callable[[int], Any] | None = None  # writes so many of the bytes


@dataclass
class Counting(Fault):
    """Writes a line for each call into a file that lies elsewhere."""

    into: str

    def around(self, call: Call) -> Any:
        line = json.dumps([call.name, os.path.relpath(call.path, self.below), call.size])
        descriptor = PLAIN["open"](self.into, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        PLAIN["write"](descriptor, f"{line}\n".encode())
        os.close(descriptor)
        return call.do()


def calls_of(file: Path) -> list[tuple[str, str, int]]:
    """Read what `Counting` wrote: name, path and bytes of each call."""
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]


@dataclass
class Dying(Fault):
    """Kills its process group before a call or in its midst: half written, or just done."""

    number: int  # of the call, from 1
    midway: bool
    _count: int = 0
    _lock: Any = field(default=None, repr=False)

    def begin(self) -> None:
        self._lock = threading.Lock()

    def around(self, call: Call) -> Any:
        with self._lock:
            self._count += 1
            if self._count == self.number:
                if self.midway and call.do_part is not None:
                    call.do_part(call.size // 2)
                elif self.midway:
                    call.do()
                die()
        return call.do()


@dataclass
class DyingAfter(Fault):
    """Kills its process group after a time, whatever it does then."""

    seconds: float

    def begin(self) -> None:
        if os.fork() == 0:  # not a thread, which would have to wait for the interpreter
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the group, by `served_lesson`
            time.sleep(self.seconds)
            die()


@dataclass
class Full(Fault):
    """A disk that has room for so many bytes more; what is deleted makes room again."""

    room: int

    def around(self, call: Call) -> Any:
        if call.name == "write":
            if call.size > self.room:
                if self.room > 0 and call.do_part is not None:
                    call.do_part(self.room)
                self.room = 0
                raise failure(errno.ENOSPC, call.path)
            self.room -= call.size
        elif call.name in MAKING and self.room <= 0 and not os.path.exists(call.path):
            raise failure(errno.ENOSPC, call.path)
        elif call.name in ("unlink", "remove", "replace") and os.path.isfile(call.path):
            freed = os.path.getsize(call.path)
            done = call.do()
            self.room += freed
            return done
        return call.do()


@dataclass
class ReadOnly(Fault):
    """A disk that is read-only from the first call on, or becomes so, as after an error."""

    first: int = 1  # number of the call that is the first to fail
    _count: int = 0

    def around(self, call: Call) -> Any:
        self._count += 1
        if self._count >= self.first and not call.name.startswith("f"):
            raise failure(errno.EROFS, call.path)
        return call.do()


@dataclass
class FailingSync(Fault):
    """A disk that fails to keep what was written: one fsync raises, or each from there on."""

    first: int = 1
    all_after: bool = True
    _count: int = 0

    def around(self, call: Call) -> Any:
        if call.name in ("fsync", "fdatasync"):
            self._count += 1
            if self._count == self.first or (self.all_after and self._count > self.first):
                raise failure(errno.EIO, call.path)
        return call.do()


def failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def die() -> None:
    os.killpg(0, signal.SIGKILL)
    time.sleep(60)  # another thread may be the first to notice


def install(fault: Fault) -> None:
    """Put the fault between this process and the disk, for as long as it lives."""
    fault.begin()
    for name in NAMES:
        setattr(os, name, _watched_name(fault, name))
    for name in OF_OPEN_FILES:
        setattr(os, name, _watched_file(fault, name))
    os.open = _watched_os_open(fault)
    os.write = _watched_write(fault)
    builtins.open = io.open = _watched_open(fault)


def _watched_name(fault: Fault, name: str) -> Callable[..., Any]:
    plain = PLAIN[name]

    def watched(*args: Any, **kwargs: Any) -> Any:
        two = name in ("rename", "replace", "link", "symlink")
        path = _path_of(args[1] if two else args[0], kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
        if not fault.touches(path):
            return plain(*args, **kwargs)
        return fault.around(Call(name, path, lambda: plain(*args, **kwargs)))

    return watched


def _watched_file(fault: Fault, name: str) -> Callable[..., Any]:
    plain = PLAIN[name]

    def watched(file: Any, *args: Any) -> Any:
        path = _path_of(file if isinstance(file, int) else file.fileno())
        if not fault.touches(path):
            return plain(file, *args)
        return fault.around(Call(name, path, lambda: plain(file, *args)))

    return watched


def _watched_os_open(fault: Fault) -> Callable[..., int]:
    plain = PLAIN["open"]

    def watched(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        where = _path_of(path, kwargs.get("dir_fd"))
        if not flags & WRITES or not fault.touches(where):
            return plain(path, flags, *args, **kwargs)
        return fault.around(Call("open", where, lambda: plain(path, flags, *args, **kwargs)))

    return watched


def _watched_write(fault: Fault) -> Callable[[int, Any], int]:
    plain = PLAIN["write"]

    def watched(file: int, data: Any) -> Any:
        path = _path_of(file)
        return (
            plain(file, data) if not fault.touches(path) else _write(fault, path, data, plain, file)
        )

    return watched


def _write(fault: Fault, path: str, data: Any, plain: Callable[..., int], *file: Any) -> Any:
    view = memoryview(data).cast("B")
    return fault.around(
        Call(
            "write",
            path,
            lambda: plain(*file, view),
            view.nbytes,
            lambda count: plain(*file, view[:count]),
        )
    )


def _watched_open(fault: Fault) -> Callable[..., Any]:
    class File(io.FileIO):
        """A file whose writes reach the disk through the fault."""

        def write(self, data: Any) -> Any:
            return _write(fault, _path_of(self.fileno()), data, super().write)

    def watched(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        path = _path_of(file)
        if not set(mode) & set("wxa+") or not fault.touches(path):
            return PLAIN_OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)

        def do() -> File:
            return File(file, mode.replace("t", ""), closefd, opener)

        named = isinstance(file, int) or opener is not None  # its opening was watched by os.open
        raw = do() if named else fault.around(Call("open", path, do))
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    return watched


def _path_of(file: Any, folder: int | None = None) -> str:
    """The path of what is named, or open; relative to a folder that is open."""
    if isinstance(file, int):
        return os.readlink(f"/proc/self/fd/{file}")
    path = os.fsdecode(file)
    return path if folder is None else os.path.join(_path_of(folder), path)

"""Ways to damage a file: bits, lengths, other things in its place, links to all sorts of places."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Harm:
    """Ways to harm this file, with everything around it."""

    file: Path
    others: tuple[Path, ...]  # files of the same folder
    outside: Path  # an empty folder that nothing has a reason to look at
    rng: Random

    def flip(self) -> None:
        data = bytearray(self.file.read_bytes()) or bytearray(1)
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        self.file.write_bytes(data)

    def cut(self) -> None:
        data = self.file.read_bytes()
        few = self.rng.choice([1, 8, 200])
        keep = self.rng.choice([self.rng.randrange(len(data) + 1), max(0, len(data) - few)])
        self.file.write_bytes(data[:keep])

    def lengthen(self) -> None:
        data = self.file.read_bytes()
        more = self.rng.choice([b"\0", b"\n{}", self.rng.randbytes(100), data])
        self.file.write_bytes(data + more)

    def garble(self) -> None:
        data = bytearray(self.file.read_bytes())
        start = self.rng.randrange(len(data) + 1)
        data[start : start + 16] = self.rng.randbytes(16)
        self.file.write_bytes(data)

    def delete(self) -> None:
        self.file.unlink()

    def empty(self) -> None:
        self.file.write_bytes(b"")

    def replace_by_folder(self) -> None:
        self.file.unlink()
        self.file.mkdir()
        if self.rng.random() < 0.5:
            (self.file / "inside").write_text("a file in a folder in place of a file")

    def swap(self) -> None:
        other = self.rng.choice(self.others or (self.file,))
        ours, theirs = self.file.read_bytes(), other.read_bytes()
        self.file.write_bytes(theirs)
        other.write_bytes(ours)

    def link_to_itself(self) -> None:
        self._link(self.file)

    def link_outside(self) -> None:
        target = self.outside / "canary"
        target.write_text("nobody may change this")
        self._link(target)

    def link_to_nothing(self) -> None:
        self._link(self.outside / "nothing")

    def link_to_folder(self) -> None:
        self._link(self.rng.choice([self.outside, self.file.parent, Path("..")]))

    def link_to_copy(self) -> None:
        target = self.outside / self.file.name
        shutil.copy(self.file, target)
        self._link(target)

    def link_to_zeros(self) -> None:
        self._link(Path("/dev/zero"))

    def pipe(self) -> None:
        self.file.unlink()
        os.mkfifo(self.file)

    def link_to_pipe(self) -> None:
        target = self.outside / "pipe"
        os.mkfifo(target)
        self._link(target)

    def link_folder(self) -> None:
        """The folder that the file lies in becomes a link to a copy of itself."""
        folder = self.file.parent
        target = self.outside / "folder"
        shutil.copytree(folder, target, symlinks=True)
        shutil.rmtree(folder)
        folder.symlink_to(target)

    def unreadable(self) -> None:
        self.file.chmod(0)

    def _link(self, target: Path) -> None:
        self.file.unlink()
        self.file.symlink_to(target)


BYTES: Mapping[str, Callable[[Harm], None]] = {
    "flip": Harm.flip,
    "cut": Harm.cut,
    "lengthen": Harm.lengthen,
    "garble": Harm.garble,
    "empty": Harm.empty,
    "swap": Harm.swap,
}
PLACES: Mapping[str, Callable[[Harm], None]] = {
    "delete": Harm.delete,
    "folder": Harm.replace_by_folder,
    "link to itself": Harm.link_to_itself,
    "link outside": Harm.link_outside,
    "link to nothing": Harm.link_to_nothing,
    "link to folder": Harm.link_to_folder,
    "link to copy": Harm.link_to_copy,
    "link to zeros": Harm.link_to_zeros,
    "pipe": Harm.pipe,
    "link to pipe": Harm.link_to_pipe,
} | ({} if os.geteuid() == 0 else {"unreadable": Harm.unreadable})  # root reads it all the same


def in_order(files: Iterable[Path]) -> list[Path]:
    """The same order whatever hashes files are named by: those of pictures have a random key."""
    return sorted(files, key=lambda file: (file.parent, file.lstat().st_size, file.name))


def contents(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder, by name: what kind of thing it is and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode())
        elif path.is_dir():
            found[name] = ("folder", b"")
        elif path.is_file():
            found[name] = ("file", path.read_bytes() if os.access(path, os.R_OK) else b"")
        else:
            found[name] = ("other", b"")
    return found

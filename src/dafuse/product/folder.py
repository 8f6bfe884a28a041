"""A model's folder: every step is a version, every tensor file is named by its own SHA-256.

    model.json                     the number of the current version, the SHA-256 of its file, the
                                   oldest version kept, and a SHA-256 of its own
    versions/0003.json             that version: classes, settings, what was done, its objects
    objects/<sha256>.safetensors   arrays: the record of one class, what predicts, what is shared
    unfinished/                    only while a lesson in shards runs, or after it was killed
    .lock                          held by a process that changes the model

A step writes its objects, then its version, and last replaces model.json, in one move. So a crash
leaves the old model or the new one. Files that model.json does not lead to are deleted. Versions
kept for undo have no object that predicts, where the method can solve it again. No torch here.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dafuse.errors import DafuseError
from dafuse.files import (
    locked,
    make_folder,
    parse_json,
    read_inside,
    refuse_links,
    remove_leftovers,
    write_atomically,
)
from dafuse.product.version import (
    OF_FEW,
    Version,
    VersionRef,
    as_text,
    from_json,
    pointers_from_json,
)
from dafuse.progress import Progress
from dafuse.sealed import read_sealed, write_sealed
from dafuse.taught.contract import Arrays

Made = TypeVar("Made")
ATTEMPTS = 20  # to read a model that is changed meanwhile
KEPT = 20  # versions, the newest included, unless `trim` leaves fewer
UNFINISHED = "unfinished"  # where `product.unfinished` keeps a lesson
OWN = {".lock", "objects", "versions", UNFINISHED}  # there before the first version is whole


class ModelFolder:
    def __init__(self, path: str | Path) -> None:
        if path == "":  # else it would be the current folder
            raise DafuseError("the path of the model is empty: name its folder")
        self.path = Path(path).expanduser()
        self.pointer_file = self.path / "model.json"
        self._is_held = False  # by `changing`
        self._parsed: dict[VersionRef, Version] = {}  # their files are read and checked each time

    def exists(self) -> bool:
        """Tell whether there is a model, damaged or not."""
        return self._has_pointer() or self._finished_first_step()

    def require(self) -> None:
        """Refuse a path without a model, in one line that says what is wrong."""
        if self.exists():
            return
        teach = f"teach one with: dafuse learn {self.path} FOLDER"
        if not self.path.exists():
            raise DafuseError(f"there is no model {self.path}; {teach}")
        if not self.path.is_dir():
            raise DafuseError(f"{self.path} is a file, not the folder of a model")
        if self._claimable():
            raise DafuseError(f"{self.path} holds no model yet; {teach}")
        self._require_not_lost()
        raise DafuseError(f"{self.path} is not a dafuse model: it has no model.json")

    def require_claimable(self) -> None:
        """Refuse to make a model where something else is."""
        if self.path.exists() and not self.path.is_dir():
            raise DafuseError(f"{self.path} is a file; give a folder for the model")
        if self.path.exists() and not self._claimable():
            self._require_not_lost()
            raise DafuseError(
                f"{self.path} is no model and not empty; the model's folder comes first, "
                "then the folder of images"
            )

    @contextmanager
    def changing(self, progress: Progress) -> Iterator[None]:
        """Hold the model for one change at a time; wait, and say so, while another has it."""

        def busy() -> None:
            progress.waits(f"another process is changing {self.path}; waiting for it to finish")

        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DafuseError(f"{self.path} cannot be a model: {error.strerror}") from None
        with self._locked(busy):
            progress.goes_on()
            remove_leftovers(self.path)
            self._finish_first_step()
            if self._has_pointer():
                self.remove_unreachable()  # what a step left that was killed at its very end
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    @contextmanager
    def _locked(self, busy: Callable[[], None]) -> Iterator[None]:
        """Hold the lock; refuse folders in here that are links, for files in them are removed."""
        with locked(self.path / ".lock", busy):
            for name in OWN:
                refuse_links(self.path / name, self.path)
            yield

    def read(self, make: Callable[[Version], Made]) -> Made:
        """Return what `make` makes of the current version."""
        return self.read_current(make)[1]

    def read_current(self, make: Callable[[Version], Made]) -> tuple[VersionRef, Made]:
        """Do as `read`, and return which version it was, also while another changes the model.

        Files that go meanwhile are no damage: then everything is read again.
        """
        self.require()
        for _ in range(ATTEMPTS):
            current, oldest = self._pointers()
            self._finish_deleting(oldest)
            try:
                return current, make(self.version(current))
            except FileNotFoundError:  # it was in the folder, and gone when it was looked at
                continue
            except DafuseError:
                if self.current() == current:  # else another replaced it, and it may be gone
                    raise
        raise DafuseError(f"{self.path} is being changed all the time: try again later")

    def current(self) -> VersionRef:
        """Return which version is the current one."""
        return self._pointers()[0]

    def oldest(self) -> int:
        """Return the number of the first version that is kept, where `undo` ends."""
        return self._pointers()[1]

    def _pointers(self) -> tuple[VersionRef, int]:
        file = self.pointer_file
        content = read_sealed(file, "restore it from a copy of the model", self.path)
        return pointers_from_json(content, file)

    def current_if_any(self) -> VersionRef | None:
        """Return which version is the current one; None if none can be read."""
        try:
            return self.current()
        except DafuseError:
            return None

    def require_still(self, version: Version) -> None:
        """Raise if this version was replaced, and its files may be gone: `read` begins again."""
        if self.version(self.current()) != version:
            raise DafuseError(f"{self.path} was changed meanwhile")

    def version(self, wanted: VersionRef) -> Version:
        data = self._checked(self.version_file(wanted.number), wanted.sha256)
        found = self._parsed.get(wanted) or self._numbered(data, wanted.number)
        return self._parsed.setdefault(wanted, found)

    def _numbered(self, data: bytes, number: int) -> Version:
        """Read a version; refuse another number, by which the current file would be deleted."""
        file = self.version_file(number)
        version = from_json(parse_json(data, file), file)
        if version.number != number:
            raise DafuseError(
                f"{file} says that it is version {version.number}: "
                "restore it from a copy of the model"
            )
        return version

    def history(self) -> list[Version]:
        """Return the versions from the first that `undo` can reach to the current one."""
        versions, damage = self.readable_history(self.version(self.current()))
        if damage is not None:
            raise damage
        return versions

    def readable_history(self, last: Version) -> tuple[list[Version], DafuseError | None]:
        """Return the versions up to `last`, oldest first, and the damage that ended the walk."""
        versions, oldest = [last], self.oldest()
        while (parent := versions[0].parent) is not None and parent.number >= oldest:
            try:
                versions.insert(0, self.version(parent))
            except DafuseError as damage:
                return versions, damage
        return versions, None

    def require_whole(self, version: Version, whole: set[str] | None = None) -> None:
        """Refuse a version by the name of the first of its objects that is damaged.

        Objects in ``whole`` are known to be whole; those that are found so now join it.
        """
        whole = set() if whole is None else whole
        needed = version.objects if self.predicts(version) else version.lasting
        needed = needed if self.has_totals(version) else needed - {version.derived}
        for digest in sorted(needed - whole):
            self._checked(self.object_file(digest), digest)
            whole.add(digest)

    def predicts(self, version: Version) -> bool:
        """Tell whether the object that predicts is there; else the method can solve it again."""
        return version.predict not in version.objects - version.lasting or (
            self.object_file(version.predict).exists()
        )

    def has_totals(self, version: Version) -> bool:
        """Tell whether the totals over all records are there; else they are made again."""
        return bool(version.derived) and self.object_file(version.derived).exists()

    def arrays(self, digest: str) -> Arrays:
        """Read the tensors of an object; refuse a damaged one by its name."""
        file = self.object_file(digest)
        try:
            found = load(self._checked(file, digest))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:  # types numpy has not
            raise DafuseError(f"{file} is damaged: {error}") from None
        for name, array in found.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise DafuseError(f"{file} is not what dafuse writes: {name} is not all numbers")
        return found

    def _checked(self, file: Path, digest: str) -> bytes:
        """Read a file; refuse one whose bytes do not have this hash."""
        try:
            data = read_inside(file, self.path)
        except OSError as error:
            raise DafuseError(
                f"{file} cannot be read ({error.strerror}): restore it from a copy of the model"
            ) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise DafuseError(
                f"{file} is damaged or was changed: restore it from a copy of the model"
            )
        return data

    def put(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Write an object, unless it is there already, and return its name."""
        data = as_bytes(arrays)
        digest = hashlib.sha256(data).hexdigest()
        file = self.object_file(digest)
        make_folder(file.parent, self.path)
        with suppress(OSError):  # it is not there, or is no file
            if read_inside(file, self.path) == data:
                return digest
        write_atomically(file, data, self.path)
        return digest

    def keep_solved(self, version: Version, predict: Arrays) -> None:
        """Write what predicts, solved again to the same bits, if current and writable."""
        with suppress(DafuseError, OSError), self._locked(_busy):
            same = hashlib.sha256(as_bytes(predict)).hexdigest() == version.predict
            if same and self.version(self.current()) == version:
                self.put(predict)

    def publish(self, version: Version, oldest: int = 1) -> None:
        """Make this the current version. Its objects are written already.

        Versions before the oldest are deleted, as are those beyond the newest `KEPT`.
        """
        file = self.version_file(version.number)
        make_folder(file.parent, self.path)
        text = as_text(version)
        write_atomically(file, text, self.path)
        current = VersionRef(version.number, hashlib.sha256(text.encode()).hexdigest())
        try:
            self.point_to(current, max(oldest, version.number - KEPT + 1))
        except BaseException:
            if not self._has_pointer():  # else a first step that failed would be finished later
                with suppress(OSError):
                    file.unlink()
            raise

    def point_to(self, current: VersionRef, oldest: int = 1) -> None:
        """Make another version the current one, in one move, and delete what is not needed then.

        What was deleted stays deleted: the oldest version never becomes an older one.
        """
        if self._has_pointer():
            oldest = min(current.number, max(oldest, self.oldest()))
        pointer = {"format": OF_FEW, "version": current.number, "sha256": current.sha256}
        write_sealed(self.pointer_file, {**pointer, "oldest": oldest}, self.path)
        with suppress(OSError):  # what cannot be deleted now is deleted with the next change
            self.remove_unreachable()
        self.remove_unfinished()

    def remove_unfinished(self) -> None:
        """Delete what a lesson kept that did not come to its end."""
        shutil.rmtree(self.path / UNFINISHED, ignore_errors=True)  # no link is followed

    def numbers(self) -> list[int]:
        """Return the numbers of all versions whose files are there."""
        stems = (file.stem for file in self.path.glob("versions/*.json"))
        return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]{4,9}", stem))

    def files(self) -> list[Path]:
        """Everything in the folder but folders; links are not followed."""
        return sorted(p for p in self.path.rglob("*") if p.is_symlink() or p.is_file())

    def remove_unreachable(self) -> None:
        for file in self._unreachable():
            file.unlink()

    def require_removed(self) -> None:
        """Raise, after a step that is to delete, if something could not be deleted."""
        if left := [*self._unreachable(), *self.path.glob(f"{UNFINISHED}/*")]:
            raise DafuseError(
                f"the step is done, but {left[0]} cannot be deleted: it goes with the next change "
                "of the model, once the disk allows that"
            )

    def _unreachable(self) -> list[Path]:
        """Return the files that neither the current version nor undo needs."""
        try:
            history = self.history()
        except DafuseError:  # an old version is damaged: what it needs is not known, so all stays
            return []
        needed = history[-1].objects.union(*(version.lasting for version in history))
        kept = {self.version_file(version.number) for version in history}
        kept |= {self.object_file(digest) for digest in needed}
        # versions go last: while an old one is there, `_finish_deleting` sees that not all is done
        files = [*self.path.glob("objects/*.safetensors"), *self.path.glob("versions/*.json")]
        return [one for one in files if one not in kept and (one.is_symlink() or not one.is_dir())]

    def _finish_deleting(self, oldest: int) -> None:
        """Delete versions that a step was to delete when it was killed, as `forget` promised.

        It looks at names alone. They stay where they cannot be deleted or another process does it.
        """
        with suppress(DafuseError, OSError):
            if not self._is_held and min(self.numbers(), default=1) < oldest:
                with self._locked(_busy):
                    self.remove_unreachable()

    def object_file(self, digest: str) -> Path:
        return self.path / "objects" / f"{digest}.safetensors"

    def version_file(self, number: int) -> Path:
        return self.path / "versions" / f"{number:04d}.json"

    def _has_pointer(self) -> bool:
        """Tell whether there is a model.json, even one that cannot be read: a link, a folder."""
        return os.path.lexists(self.pointer_file)

    def _claimable(self) -> bool:
        return {path.name for path in self.path.iterdir()} <= OWN and not self._has_versions()

    def _has_versions(self) -> bool:
        return any(self.path.glob("versions/*.json"))

    def _finished_first_step(self) -> bool:
        """Finish a first step that was killed before its last write: else nobody could teach it."""
        if self._is_held or not self.version_file(1).exists():
            return False
        with suppress(OSError), self._locked(lambda: None):
            self._finish_first_step()
        return self._has_pointer()

    def _finish_first_step(self) -> None:
        """Point to a whole version 1 that nothing points to; the lock is held."""
        first = self.version_file(1)
        if self._has_pointer() or self.numbers() != [1]:
            return
        with suppress(DafuseError, OSError):
            data = read_inside(first, self.path)
            self.require_whole(self._numbered(data, 1))
            self.point_to(VersionRef(1, hashlib.sha256(data).hexdigest()))

    def _require_not_lost(self) -> None:
        """Refuse versions without model.json, which the next lesson would delete."""
        if self._has_versions() and not self.exists():
            raise DafuseError(
                f"{self.pointer_file} is missing, which says which of the versions there counts: "
                "bring it back, or delete the folder to start over"
            )


def _busy() -> None:
    raise DafuseError("another process is changing the model")


def as_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})

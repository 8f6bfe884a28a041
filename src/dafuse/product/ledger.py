"""The ledger: every file and tensor that a model keeps, and what it says about the images.

No torch here: what is listed is what lies in the folder, read file by file and checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

from dafuse.data.images import REDUCED_PIXELS
from dafuse.errors import DafuseError
from dafuse.product.folder import UNFINISHED, ModelFolder
from dafuse.product.seen import HASH_BYTES, WORDS
from dafuse.product.version import ClassRecord, Version
from dafuse.taught.contract import CLASS, DERIVED, PREDICT, SHARED
from dafuse.taught.table import entry_of
from dafuse.wording import counted

STRANGER = "not part of the model"
BEGUN = "of a lesson that did not come to its end; the next change of the model deletes it"
FOR_UNDO = ", kept for undo to version "
HASHES = "short hashes of the images taught, by which they are recognised"


@dataclass(frozen=True)
class KeptTensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    what: str


@dataclass(frozen=True)
class Entry:
    """A file of the model."""

    file: str
    bytes: int
    what: str
    tensors: list[KeptTensor]
    of_class: ClassRecord | None = None


@dataclass(frozen=True)
class Ledger:
    path: str
    entries: list[Entry]
    damage: str = ""  # that keeps older versions from being known

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def classes(self) -> list[Entry]:
        """The records of classes as they were learned; older ones of some stand beside them."""
        found = [(entry.of_class.id, entry) for entry in self.entries if entry.of_class]
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]

    def lines(self) -> list[str]:
        lines = [f"{self.path} keeps {len(self.entries)} files, {self.bytes:,} bytes in all"]
        for entry in self.entries:
            lines += ["", f"{entry.file}  {entry.bytes:,} bytes", f"  {entry.what}"]
            lines += [
                f"  {one.name}  {one.dtype} {list(one.shape)}  {one.bytes:,} bytes"
                + (f": {one.what}" if one.what else "")
                for one in entry.tensors
            ]
        return [*lines, "", *self.proof()]

    def proof(self) -> list[str]:
        """Say what the files above can and cannot hold of the images."""
        lines = ["what is kept of each class, beside what its images held:"]
        records = [entry.of_class for entry in self.classes if entry.of_class is not None]
        for entry, record in zip(self.classes, records, strict=True):
            numbers = sum(prod(one.shape) for one in entry.tensors)
            older = entry.what.partition(FOR_UNDO)
            lines.append(
                f"  {record.name}: {numbers:,} numbers, of {counted(record.images, 'image')} with "
                f"{record.pixels:,} numbers{older[1]}{older[2]}"
            )
        lines += [
            "Every tensor that is kept is listed above, and the records of all classes have the",
            "same shapes, however many images a class was learned from: there is no image in them",
            "and no vector for each image, only what is listed.",
        ]
        lines += self._about_hashes()
        if few := _singled_out(records):
            lines.append(
                f"But: learned from one or two images, or from one or two more than an older "
                f"version that is kept for undo: {', '.join(few)}. The feature vectors of so few "
                "images follow from means and covariances."
            )
        if self.damage:
            lines.append(f"But: {self.damage}; not all that older versions keep is known.")
        if any(entry.what == BEGUN for entry in self.entries):
            lines.append(
                f"But: {UNFINISHED}/ has sums and hashes of the images of a lesson that did not "
                "come to its end, and feature vectors of some; the same lesson goes on from them."
            )
        if strangers := [entry.file for entry in self.entries if entry.what == STRANGER]:
            lines.append(
                f"But: not part of the model, and not looked into: {', '.join(strangers)}."
            )
        return lines

    def _about_hashes(self) -> list[str]:
        """Say what the hashes of images can tell, and to whom."""
        found = [entry for entry in self.entries if entry.what.startswith(HASHES)]
        hashes = [
            prod(one.shape) for entry in found for one in entry.tensors if "hashes/" in one.name
        ]
        if not hashes:
            return ["No hash of any image is kept: none that was taught can be recognised."]
        return [
            f"Beside that, {HASH_BYTES} bytes for each image, a hash of its pixels with a key of "
            f"this model: {sum(hashes):,} of them, {sum(entry.bytes for entry in found):,} bytes.",
            "Who has this folder and an image can tell whether that very image was taught, and",
            "as which class; one that was saved again, cropped or made smaller is not known. A",
            f"image of more than {REDUCED_PIXELS:,} pixels is compared as reduced to so many.",
            "How an image looks cannot be told. Lessons with --no-recognise leave no hashes.",
        ]


def _singled_out(records: list[ClassRecord]) -> list[str]:
    """Return the classes with a state of one or two images, or two states so few images apart."""
    counts: dict[int, set[int]] = {}
    for record in records:
        counts.setdefault(record.id, {0}).add(record.images)
    close = {
        number
        for number, images in counts.items()
        if any(0 < more - fewer < 3 for fewer, more in pairwise(sorted(images)))
    }
    return list(dict.fromkeys(record.name for record in records if record.id in close))


def make_ledger(folder: ModelFolder) -> Ledger:
    """Read and check every file of the model."""

    def load(current: Version) -> Ledger:
        folder.require_whole(current)
        roles, classes, damage = _roles(folder, current)
        entries = []
        for file in folder.files():
            name = file.relative_to(folder.path).as_posix()
            known = name in roles and file.suffix == ".safetensors"
            tensors = _tensors(folder, file, roles[name]) if known else []
            what = roles[name].what if name in roles else _other(name)
            entries.append(Entry(name, file.lstat().st_size, what, tensors, classes.get(name)))
        ledger = Ledger(str(folder.path), entries, "" if damage is None else str(damage))
        _require_same_shapes(ledger)
        return ledger

    return folder.read(load)


class _Role(NamedTuple):
    """The purpose of a file of the model."""

    what: str
    kept: Mapping[str, str] = {}  # how names of its arrays begin -> what they are
    prefix: str = ""  # what its arrays' names begin with, outside this file


def _roles(
    folder: ModelFolder, current: Version
) -> tuple[dict[str, _Role], dict[str, ClassRecord], DafuseError | None]:
    """Return what each file is for, and the class whose record it holds, by its name.

    The damage that keeps older versions from being known, if any does, is returned beside them.
    """
    roles = {
        "model.json": _Role("which version counts, the hash of its file, the oldest version kept"),
        ".lock": _Role("empty; held while the model is changed"),
    }
    classes: dict[str, ClassRecord] = {}
    history, damage = folder.readable_history(current)
    if damage is not None:
        folder.require_still(current)
    for version in history:  # the current one comes last and has the last word
        kept = "" if version.number == current.number else f"{FOR_UNDO}{version.number}"
        words = entry_of(version.method, version.settings).words.kept
        roles[_name(folder, folder.version_file(version.number))] = _Role(
            "class names, numbers of images, settings, accuracies, times; no names of images" + kept
        )
        for digest, what, prefix in (
            (version.shared, "what all classes share", SHARED),
            (version.predict, "what predicts", PREDICT),
            (version.derived, "totals over the records of all classes", DERIVED),
        ):
            if digest:
                role = _Role(what + kept, words, prefix)
                roles[_name(folder, folder.object_file(digest))] = role
        for digest in version.seen:
            name = _name(folder, folder.object_file(digest))
            roles[name] = _Role(HASHES + kept, WORDS)
        for record in version.classes:
            name = _name(folder, folder.object_file(record.record))
            what = f"record of {record.name}, from {counted(record.images, 'image')}{kept}"
            roles[name] = _Role(what, words, CLASS)
            classes[name] = record
    needed = set().union(*(version.lasting for version in history))
    lasting = map(folder.object_file, sorted(needed))
    gone = [file for file in lasting if not (file.is_symlink() or file.is_file())]
    if gone and damage is None:
        damage = DafuseError(f"{gone[0]} is missing: restore it from a copy of the model")
    return roles, classes, damage


def _other(name: str) -> str:
    """Return what a file is that no version needs."""
    return BEGUN if name.startswith(f"{UNFINISHED}/") else STRANGER


def _tensors(folder: ModelFolder, file: Path, role: _Role) -> list[KeptTensor]:
    def what(name: str) -> str:
        full = role.prefix + name
        return next((words for start, words in role.kept.items() if full.startswith(start)), "")

    return [
        KeptTensor(name, array.shape, str(array.dtype), array.nbytes, what(name))
        for name, array in sorted(folder.arrays(file.stem).items())
    ]


def _require_same_shapes(ledger: Ledger) -> None:
    """Refuse records of different shapes: the proof says that they are the same."""
    shapes = [[(one.name, one.shape) for one in entry.tensors] for entry in ledger.classes]
    for entry, one in zip(ledger.classes, shapes, strict=True):
        if one != shapes[0]:
            raise DafuseError(f"{ledger.path}/{entry.file} does not hold what dafuse writes")


def _name(folder: ModelFolder, file: Path) -> str:
    return file.relative_to(folder.path).as_posix()

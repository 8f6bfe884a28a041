"""Changes that need no images and no network: forget, rename, undo. No torch here."""

from dataclasses import dataclass, replace
from itertools import takewhile

from dafuse.data.names import composed, same_name, taught_name
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import Parent, Version, now
from dafuse.progress import Progress


@dataclass(frozen=True)
class Forgotten:
    names: list[str]
    for_good: bool
    versions: list[int]  # older ones that were removed, as they held one of the classes


def forget(
    folder: ModelFolder, names: list[str], for_good: bool = False, progress: Progress | None = None
) -> Forgotten:
    """Remove classes and their statistics; for good, also from every older version.

    The adapter and the other classes' rows stay as they were learned beside them.
    """
    folder.require()
    if not names:
        raise DafuseError("name the classes to forget")
    names = list(dict.fromkeys(map(composed, names)))
    with folder.changing(progress or Progress()):
        head = folder.head()
        version = folder.version(head)
        history, damage = folder.readable_history(version) if for_good else ([version], None)
        ids = _ids(history, names)
        rows = [row for row, record in enumerate(version.classes) if record.id not in ids]
        if not rows:
            raise DafuseError(
                f"these are all classes of {folder.path}: delete the folder to forget everything"
            )
        arrays = {name: array[rows] for name, array in folder.arrays(version.classifier).items()}
        step = {"did": "forget", "when": now(), "classes": names, "for_good": for_good}
        after = version.next(
            step,
            head.sha256,
            classes=[version.classes[row] for row in rows],
            classifier=folder.put(arrays),
        )
        removed: list[int] = []
        if for_good:  # undo must end before the first version that held one of them
            clean = list(takewhile(lambda one: not ids & {r.id for r in one.classes}, history))
            if damage is not None:  # nobody knows what the older ones held
                clean = []
            links = [*(one.parent for one in history[1:]), head]  # by which each is named
            after = replace(after, parent=links[len(clean) - 1] if clean else None)
            kept = {one.number for one in clean}
            removed = [number for number in folder.numbers() if number not in kept]
        folder.publish(after)
    return Forgotten(names, for_good, removed)


def rename(folder: ModelFolder, old: str, new: str, progress: Progress | None = None) -> None:
    folder.require()
    new = taught_name(new)
    with folder.changing(progress or Progress()):
        head = folder.head()
        version = folder.version(head)
        row = version.position(old)
        old, others = version.names[row], version.names[:row] + version.names[row + 1 :]
        if new == old:
            raise DafuseError(f"{old!r} is called so already: nothing to rename")
        if taken := [name for name in others if same_name(name) == same_name(new)]:
            raise DafuseError(f"there is a class {taken[0]!r} already; choose another name")
        classes = list(version.classes)
        classes[row] = replace(classes[row], name=new)
        step = {"did": "rename", "when": now(), "old": old, "new": new}
        folder.publish(version.next(step, head.sha256, classes=classes))


def undo(
    folder: ModelFolder, progress: Progress | None = None, expected: Parent | None = None
) -> tuple[Version, Version]:
    """Go back to the version before; what was undone is removed. The undone one, and this one.

    Not to a version of which a file is damaged: the model that counts may be the last whole one.
    What another process does while this one waits for it is not undone; nor, where a version is
    expected, another one.
    """
    folder.require()
    seen = expected or folder.head()
    with folder.changing(progress or Progress()):
        head = folder.head()
        if head != seen:
            raise DafuseError(
                f"{folder.path} was changed meanwhile, to version {head.number}: nothing was "
                "undone; see dafuse info, and undo again if that is to go"
            )
        undone = folder.version(head)
        parent, before = _before(folder, undone)
        folder.point_to(parent)
    return undone, before


def _before(folder: ModelFolder, version: Version) -> tuple[Parent, Version]:
    """The version before this one, with every file of it checked."""
    wanted = version.parent
    if wanted is None:
        raise DafuseError(f"{folder.path} has no earlier version: there is nothing to undo")
    try:
        before = folder.version(wanted)
        folder.require_whole(before)
    except DafuseError as damage:
        raise DafuseError(
            f"nothing was undone, as version {wanted.number} is damaged: {damage}, or go on with "
            f"version {version.number}"
        ) from None
    return wanted, before


def _ids(history: list[Version], names: list[str]) -> set[int]:
    """The classes of these names: those of today, and those that had the name and are gone.

    A class that was called so once and is still here, by another name, stays.
    """
    today = {record.id: composed(record.name) for record in history[-1].classes}
    called = [(composed(record.name), record.id) for one in history for record in one.classes]
    ids = set()
    for name in names:
        ever = {number for other, number in called if other == name}
        found = {number for number in ever if today.get(number, name) == name}
        if not found:
            history[-1].position(name)  # says which there are
        ids |= found
    return ids

"""Changes that need no images: forget, rename, undo, trim, merge. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dafuse import __version__
from dafuse.data.class_names import check_class_names, composed, same_name, taught_name
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import put_arrays, saying_what_is_wrong
from dafuse.product.seen import Seen, with_classes
from dafuse.product.version import ClassRecord, Version, VersionRef, now
from dafuse.progress import Progress
from dafuse.taught.contract import Teachable
from dafuse.taught.table import find_taught

OpenMethod = Callable[[Version], Teachable]  # a version's method, with what it has learned
Part = tuple[ModelFolder, tuple[Version, Teachable]]  # a model to be merged
FORGOTTEN = "a class since forgotten"  # in the history, instead of its name


@dataclass(frozen=True)
class Forgotten:
    names: list[str]
    for_good: bool
    versions: list[int]  # older ones that were deleted
    remains: str  # of the classes, in words; "" for nothing


def forget(
    folder: ModelFolder,
    names: list[str],
    open_method: OpenMethod,
    for_good: bool = False,
    progress: Progress | None = None,
) -> Forgotten:
    """Remove classes with their records; for good, also from every older version and the history.

    For good, every older version is deleted, since each names them: `undo` then has nothing left
    to take back. A class that only older versions have, or only the history names, can be forgotten
    for good, too.
    """
    folder.require()
    if not names:
        raise DafuseError("name the classes to forget")
    names = list(dict.fromkeys(map(composed, names)))
    with folder.changing(progress or Progress()):
        current = folder.current()
        version = folder.version(current)
        history = folder.readable_history(version)[0] if for_good else [version]
        ids = _ids(history, names, _names_in_history(version) if for_good else set())
        remaining = [n for n, record in enumerate(version.classes) if record.id not in ids]
        if not remaining:
            raise DafuseError(
                f"these are all classes of {folder.path}: delete the folder to forget everything"
            )
        changes: dict[str, Any] = {}
        if len(remaining) < len(version.classes):
            changes = _without(folder, version, remaining, open_method(version))
        shown = [FORGOTTEN] if for_good else names
        step = {"did": "forget", "when": now(), "classes": shown, "for_good": for_good}
        after = version.next(step, current.sha256, **changes)
        removed: list[int] = []
        if for_good:
            called = _called(history, ids, names)
            after = replace(after, history=[_unnamed(one, called) for one in after.history])
            removed = [number for number in folder.numbers() if number < after.number]
            folder.publish(after, after.number)
            folder.require_removed()
        else:
            folder.publish(after)
    remains = find_taught(version.method, version.settings).remains
    return Forgotten(names, for_good, removed, remains)


def _without(
    folder: ModelFolder, version: Version, remaining: list[int], method: Teachable
) -> dict[str, Any]:
    """Return what changes in a version when only these of its classes remain, by position."""
    method.drop(remaining)
    classes = [version.classes[position] for position in remaining]
    return {
        **put_arrays(folder, method.arrays(), classes),
        "seen": with_classes(folder, version, [one.id for one in classes]),
        "numbers": method.numbers(),
    }


def _called(history: list[Version], ids: set[int], names: list[str]) -> set[str]:
    """Return every name that these classes ever had, in versions and renamings."""
    called = {composed(one.name) for v in history for one in v.classes if one.id in ids}
    called |= set(names)
    for step in reversed(history[-1].history):
        if step["did"] == "rename" and composed(step["new"]) in called:
            called.add(composed(step["old"]))
    return called


def _names_in_history(version: Version) -> set[str]:
    """Return the names of all classes in the version's history."""
    found: set[str] = set()

    def note(name: str) -> str:
        found.add(composed(name))
        return name

    for step in version.history:
        _with_names(step, note)
    return found - {FORGOTTEN}


def _unnamed(step: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a step of the history without these names."""
    return _with_names(step, lambda name: FORGOTTEN if composed(name) in names else name)


def _with_names(step: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a step of the history with every name of a class changed."""

    def changed(entries: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
        return [{**one, **{key: change(one[key]) for key in keys}} for one in entries]

    match step["did"]:
        case "learn":
            alike = changed(step.get("alike", []), "name", "other")
            return {**step, "classes": changed(step["classes"], "name"), "alike": alike}
        case "forget":
            return {**step, "classes": [change(name) for name in step["classes"]]}
        case "rename":
            return {**step, "old": change(step["old"]), "new": change(step["new"])}
    return step


def trim(folder: ModelFolder, keep: int, progress: Progress | None = None) -> list[int]:
    """Delete all but the newest versions; return the numbers of those deleted."""
    folder.require()
    if keep < 1:
        raise DafuseError(f"at least 1 version must be kept, not {keep}")
    with folder.changing(progress or Progress()):
        current, before = folder.current(), folder.numbers()
        folder.point_to(current, current.number - keep + 1)
        folder.require_removed()
        return sorted(set(before) - set(folder.numbers()))


def rename(folder: ModelFolder, old: str, new: str, progress: Progress | None = None) -> None:
    folder.require()
    new = taught_name(new)
    with folder.changing(progress or Progress()):
        current = folder.current()
        version = folder.version(current)
        position = version.position(old)
        old = version.names[position]
        others = [name for name in version.names if name != old]
        if new == old:
            raise DafuseError(f"the class is called {old!r} already: nothing to rename")
        if taken := [name for name in others if same_name(name) == same_name(new)]:
            raise DafuseError(f"there is a class {taken[0]!r} already; choose another name")
        classes = list(version.classes)
        classes[position] = replace(classes[position], name=new)
        step = {"did": "rename", "when": now(), "old": old, "new": new}
        folder.publish(version.next(step, current.sha256, classes=classes))


def undo(
    folder: ModelFolder, progress: Progress | None = None, expected: VersionRef | None = None
) -> tuple[Version, Version]:
    """Go back to the version before and delete the undone one; return the undone one and this.

    A version with a damaged file is refused: the current one may be the last that is whole. Steps
    of another process, which this one waited for, are not undone; nor are any where another version
    is expected.
    """
    folder.require()
    seen = expected or folder.current()
    with folder.changing(progress or Progress()):
        current = folder.current()
        if current != seen:
            raise DafuseError(
                f"{folder.path} was changed meanwhile, to version {current.number}: nothing was "
                "undone; see what it is by dafuse info, and run undo again to take it back"
            )
        undone = folder.version(current)
        parent, before = _before(folder, undone)
        folder.point_to(parent)
    return undone, before


def _before(folder: ModelFolder, version: Version) -> tuple[VersionRef, Version]:
    """Return the version before this one, after a check of all its files."""
    wanted = version.parent
    if wanted is None:
        raise DafuseError(f"{folder.path} has no earlier version: there is nothing to undo")
    if wanted.number < folder.oldest():
        raise DafuseError(
            f"there is nothing to undo: the versions of {folder.path} before {version.number} were "
            "deleted, by forget --for-good, by trim, or because only the newest are kept"
        )
    try:
        before = folder.version(wanted)
        folder.require_whole(before)
    except DafuseError as damage:
        raise DafuseError(
            f"nothing was undone, as version {wanted.number} is damaged: {damage}, or go on with "
            f"version {version.number}"
        ) from None
    return wanted, before


def _ids(history: list[Version], names: list[str], in_history: set[str]) -> set[int]:
    """Return the ids of the classes that have these names, or had them and are gone.

    A class that once had the name and now has another stays. A name may also stand only in the
    history, for a class that no version holds any more.
    """
    today = {record.id: composed(record.name) for record in history[-1].classes}
    called = [(composed(record.name), record.id) for one in history for record in one.classes]
    ids = set()
    for name in names:
        ever = {number for other, number in called if other == name}
        found = {number for number in ever if today.get(number, name) == name}
        if not found and (still := _still_here(history[-1], name, ever)):
            raise DafuseError(f"no class is called {name!r} any more: it is called {still!r} now")
        if not found and name not in in_history:
            history[-1].position(name)  # says which there are
        ids |= found
    return ids


def _still_here(version: Version, name: str, ever: set[int]) -> str | None:
    """Return the present name of a class that had this one and was renamed."""
    called = name
    for step in version.history:
        if step["did"] == "rename" and composed(step["old"]) == called:
            called = composed(step["new"])
    renamed = {called} - {name}
    names = (one.name for one in version.classes if one.id in ever or composed(one.name) in renamed)
    return next(names, None)


def merge(parts: list[Part], out: ModelFolder, progress: Progress | None = None) -> Version:
    """Write the merged model; the others stay as they are. Classes of the same name are joined."""
    if len(parts) < 2:
        raise DafuseError("name two models or more to merge")
    if out.exists():
        raise DafuseError(f"there is a model {out.path} already: choose another path")
    out.require_claimable()
    _require_alike(parts)
    first, method = parts[0][1]
    classes = list(first.classes)
    seen, twice = _seen(parts[0][0], first, range(len(classes))), 0
    for folder, (version, other) in parts[1:]:
        numbers = _numbered(classes, version)
        method.merge(other, numbers)
        more = _seen(folder, version, numbers)
        seen, twice = seen.joined(more), twice + seen.shared_with(more)
        for record, number in zip(version.classes, numbers, strict=True):
            if number == len(classes):
                classes.append(record)
            else:
                classes[number] = _joined(classes[number], record)
    check_class_names([record.name for record in classes], "the merged model")
    step: dict[str, Any] = {
        "did": "merge",
        "when": now(),
        "models": [folder.path.name for folder, _ in parts],
        "classes": len(classes),
        "twice": twice,  # images that are known to have been taught to several of them
        "compared": _by_one_key(parts),
    }
    with out.changing(progress or Progress()):
        if out.exists():  # another process was first
            raise DafuseError(f"there is a model {out.path} by now: choose another path")
        classes = [replace(record, id=number) for number, record in enumerate(classes)]
        merged = replace(
            first,
            number=1,
            parent=None,
            made_by=__version__,
            next_id=len(classes),
            **put_arrays(out, method.arrays(), classes),
            key=seen.key,
            seen=seen.put(out),
            numbers=method.numbers(),
            history=[{"version": 1, **step}],
        )
        out.publish(merged)
    return merged


def _require_alike(parts: list[Part]) -> None:
    """Refuse models that cannot be added up, with the reason."""
    folder, (first, _) = parts[0]
    for other_folder, (other, _) in parts[1:]:
        both = f"{folder.path} and {other_folder.path} cannot be merged"
        if other_folder.path.resolve() == folder.path.resolve():
            raise DafuseError(f"{both}: they are the same model, whose images would count twice")
        for part, what in (("backbone", "on different networks"), ("method", "by other methods")):
            if getattr(other, part) != getattr(first, part):
                raise DafuseError(f"{both}: they were taught {what}")
        if other.settings != first.settings:
            different = [k for k in first.settings if other.settings.get(k) != first.settings[k]]
            raise DafuseError(f"{both}: they have different settings: {', '.join(different)}")


def _numbered(classes: list[ClassRecord], version: Version) -> list[int]:
    """Return which class of the merged model each class of a version is; new ones come last."""
    known = {same_name(record.name): number for number, record in enumerate(classes)}
    numbers = []
    for record in version.classes:
        numbers.append(known.setdefault(same_name(record.name), len(known)))
    return numbers


def _seen(folder: ModelFolder, version: Version, numbers: Sequence[int]) -> Seen:
    """Read the hashes of a model, with the ids that its classes have in the merged one."""
    ids = {record.id: number for record, number in zip(version.classes, numbers, strict=True)}
    with saying_what_is_wrong(folder, version):
        return Seen.of(folder, version).renumbered(ids.__getitem__)


def _by_one_key(parts: list[Part]) -> bool:
    """Tell whether images that several of these models were taught show in their hashes."""
    versions = [version for _, (version, _) in parts]
    return len({version.key for version in versions}) == 1 and all(one.seen for one in versions)


def _joined(one: ClassRecord, other: ClassRecord) -> ClassRecord:
    return replace(
        one,
        images=one.images + other.images,
        pixels=one.pixels + other.pixels,
        learned=min(one.learned, other.learned),
        updated=max(one.updated, other.updated),
    )

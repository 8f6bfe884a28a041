"""What a model is: its classes, where they come from, its size and its history. No torch here."""

from dataclasses import dataclass
from typing import Any

from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import ClassRecord, Version
from dafuse.wording import counted

SHOWN = 12  # classes of a lesson, in the history


@dataclass(frozen=True)
class Summary:
    path: str
    version: Version
    history: list[Version]  # the oldest that undo can reach first
    bytes: int  # of everything in the folder
    damaged: dict[int, str]  # versions that undo cannot bring back, and why

    @property
    def classes(self) -> list[ClassRecord]:
        return self.version.classes

    def lines(self) -> list[str]:
        backbone = self.version.backbone
        images = sum(record.images for record in self.classes)
        lines = [
            f"{self.path}: {counted(len(self.classes), 'class', 'classes')} from "
            f"{counted(images, 'image')}, "
            f"version {self.version.number}, {self.bytes / 1e6:.2f} MB",
            f"method {self.version.method}, backbone {backbone.tag} "
            f"(SHA-256 {backbone.sha256[:12]}), {backbone.size} pixels",
            "",
            f"{'class':24} {'images':>7}  {'learned':23} updated",
        ]
        for record in self.classes:
            updated = record.updated if record.updated != record.learned else ""
            lines.append(
                f"{record.name:24} {record.images:7}  {when(record.learned):23} {when(updated)}"
            )
        return [*lines, "", "history", *self._history_lines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Everything that was done, the oldest first; also what undo cannot reach any more."""
        found = {step["version"]: step for one in self.history for step in one.history}
        return [found[number] for number in sorted(found)]

    def _history_lines(self) -> list[str]:
        said = {step["version"]: describe_step(step) for step in self.steps}
        for number, why in self.damaged.items():
            did = f"{said[number]}; " if number in said else ""
            said[number] = f"{did}damaged: {why}"
        return [f"  {number:3}  {what}" for number, what in sorted(said.items())]


def summarise(folder: ModelFolder) -> Summary:
    def load(version: Version) -> Summary:
        sizes = [file.lstat().st_size for file in folder.files()]
        history, damaged = _looked_through(folder, version)
        if damaged:
            folder.require_still(version)
        return Summary(str(folder.path), version, history, sum(sizes), damaged)

    return folder.read(load)


def _looked_through(folder: ModelFolder, last: Version) -> tuple[list[Version], dict[int, str]]:
    """The versions that are known, and what is wrong with which."""
    history, cut = folder.readable_history(last)
    damaged = {}
    if cut is not None and history[0].parent is not None:
        damaged[history[0].parent.number] = f"{cut}; undo ends here"
    whole: set[str] = set()  # objects that versions share are read once
    first: dict[str, int] = {}  # what is wrong with several is said of the first
    for version in history:
        try:
            folder.require_whole(version, whole)
        except DafuseError as damage:
            before = first.setdefault(str(damage), version.number)
            same = f"as version {before} is"
            damaged[version.number] = str(damage) if before == version.number else same
    return history, damaged


def describe(version: Version) -> str:
    """The step that made a version, in a line."""
    return describe_step(version.step)


def describe_step(step: dict[str, Any]) -> str:
    return f"{when(step['when'])}  {WORDS[step['did']](step)}"


def when(time: str) -> str:
    return time.replace("T", " ").removesuffix("+00:00") + " UTC" if time else ""


def _learn(step: dict[str, Any]) -> str:
    taught = [
        f"{one['name']} ({'' if one['new'] else '+'}{one['images']})"
        for one in sorted(step["classes"], key=lambda one: not one["new"])
    ]
    if len(taught) > SHOWN:
        images = sum(one["images"] for one in step["classes"])
        others = counted(len(taught) - SHOWN, "other class", "other classes")
        taught = [*taught[:SHOWN], f"and {others} ({counted(images, 'image')} in all)"]
    accuracy = step["accuracy"]
    tested = "" if accuracy is None else f"; {accuracy:.1%} of images right, {step['how']}"
    return f"learned {', '.join(taught)}{tested}"


def _forget(step: dict[str, Any]) -> str:
    return f"forgot {', '.join(step['classes'])}" + (" for good" if step["for_good"] else "")


def _rename(step: dict[str, Any]) -> str:
    return f"renamed {step['old']} to {step['new']}"


def _merge(step: dict[str, Any]) -> str:
    return f"merged {', '.join(step['models'])}: {step['classes']} classes"


WORDS = {"learn": _learn, "forget": _forget, "rename": _rename, "merge": _merge}

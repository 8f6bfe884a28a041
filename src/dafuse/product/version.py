"""A version of a model: plain records, the JSON of its file, and back.

What is read is checked, whoever wrote it. A file whose hash is right may still have been made by
hand, to harm who opens it: so every record has the types below, every number is one that can be
counted with, and class names are held to the rule by which they were taught.
"""

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dafuse import __version__
from dafuse.backbones.card import require_possible
from dafuse.backbones.extractor import Extractor
from dafuse.data.class_names import composed, require_taught_names
from dafuse.data.preprocessing import Crop, Interpolation, Preprocessing
from dafuse.errors import DafuseError, did_you_mean
from dafuse.methods.options import Seed
from dafuse.shapes import (
    AMOUNT,
    ANYTHING,
    COUNT,
    FLAG,
    FROM_1,
    LARGEST,
    NUMBER,
    WORD,
    Each,
    Keys,
    Kind,
    Maybe,
    require_shape,
)
from dafuse.taught.table import entry_of

FORMAT = 5  # the newest that is read: with totals over the records of many classes
OF_FEW = 4  # without; 3: flip only in the history; 2: without interpolation, crop, file
DEEPEST_VERSION = 8  # lists and objects within each other


@dataclass(frozen=True)
class ClassRecord:
    """A class as it is known now."""

    id: int  # stays the same when the class is renamed or taught more
    name: str
    images: int  # that it was learned from
    pixels: int  # numbers in those images: height x width x 3 of each
    learned: str  # when first
    updated: str  # when last
    record: str  # SHA-256 of the object with what is kept of this class alone


@dataclass(frozen=True)
class BackboneRecord:
    """The frozen network, which is not in the folder, and how its images are preprocessed."""

    tag: str
    sha256: str
    size: int
    mean: list[float]
    std: list[float]
    resize: int
    interpolation: Interpolation = "bicubic"
    crop: Crop = "center"
    file: str = field(default="", compare=False)  # .onnx of the network, where it lay at first

    @classmethod
    def of(cls, extractor: Extractor) -> "BackboneRecord":
        looks = asdict(extractor.preprocessing)
        looks |= {"mean": list(looks["mean"]), "std": list(looks["std"])}
        file = "" if extractor.file is None else str(extractor.file.absolute())
        return cls(extractor.tag, extractor.sha256, **looks, file=file)

    @property
    def preprocessing(self) -> Preprocessing:
        looks = (self.resize, self.interpolation, self.crop)
        return Preprocessing(self.size, tuple(self.mean), tuple(self.std), *looks)

    def require_size_of(self, extractor: Extractor) -> None:
        """Raise ValueError if images have another size here than the network takes."""
        if self.size != extractor.pixels:
            raise ValueError(
                f"it has images of {self.size} pixels a side, and {extractor.tag} takes "
                f"{extractor.pixels}"
            )


@dataclass(frozen=True)
class VersionRef:
    """A pointer to a version: its number and the hash of its file."""

    number: int
    sha256: str


@dataclass(frozen=True)
class Version:
    number: int
    parent: VersionRef | None  # the version before, to which `undo` goes back
    made_by: str  # the version of dafuse
    backbone: BackboneRecord
    method: str
    settings: dict[str, Any]  # of the method, every option
    seed: Seed
    flip: bool  # whether a lesson trains on mirrored images, too, unless it says otherwise
    key: str  # random: images that were taught are recognised by a hash with this key
    next_id: int  # of classes
    classes: list[ClassRecord]  # in the order of the class weights
    shared: str  # SHA-256 of the object with what is kept of all classes together; "" for nothing
    predict: str  # SHA-256 of the object with what turns features into answers
    seen: list[str]  # SHA-256 of each object with hashes of images taught
    numbers: dict[str, float]  # of the method: temperature, threshold and the like
    history: list[dict[str, Any]]  # every step so far, this version's own last
    # SHA-256 of the object with totals over all records, where the method keeps them; "" if not
    derived: str = ""

    @property
    def step(self) -> dict[str, Any]:
        """The step that made this version of the one before."""
        return self.history[-1] if self.history else {}

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.classes]

    @property
    def objects(self) -> set[str]:
        """Every object that this version needs."""
        records = {one.record for one in self.classes}
        return {self.shared, self.predict, self.derived, *self.seen, *records} - {""}

    @property
    def lasting(self) -> set[str]:
        """The objects it needs while another version is current.

        Totals can be computed from the records, and some methods can solve `predict` again. A model
        with totals has so many classes that solving takes minutes, so its `predict` is kept.
        """
        solved = entry_of(self.method, self.settings).solves_again and not self.derived
        return self.objects - {self.derived, *([self.predict] if solved else [])}

    def seen_by(self, extractor: Extractor) -> "Version":
        """Return this version with the present place of its network's file."""
        if extractor.file is None:
            return self
        return replace(self, backbone=replace(self.backbone, file=str(extractor.file.absolute())))

    def position(self, name: str) -> int:
        """Return a class's position; refuse, in one line, a name that no class has."""
        names = list(map(composed, self.names))  # a terminal may spell an accent in another way
        if composed(name) not in names:
            raise DafuseError(
                f"no class is called {name!r}; there are {', '.join(sorted(self.names)[:12])}"
                + (" ..." if len(self.names) > 12 else "")
                + did_you_mean(name, self.names)
            )
        return names.index(composed(name))

    def next(self, step: dict[str, Any], sha256: str, **changes: Any) -> "Version":
        """Return the next version; this one's file has this hash (version 0 has no file)."""
        number = self.number + 1
        parent = VersionRef(self.number, sha256) if self.number else None
        history = [*self.history, {"version": number, **step}]
        changes = {"made_by": __version__, "history": history, **changes}
        return replace(self, number=number, parent=parent, **changes)


def blank(backbone: BackboneRecord, method: str, settings: dict[str, Any], seed: int) -> Version:
    """Return version 0, of a model that has learned nothing. It is never written."""
    return Version(
        number=0,
        parent=None,
        made_by=__version__,
        backbone=backbone,
        method=method,
        settings=settings,
        seed=seed,
        flip=True,
        key=new_key(),
        next_id=0,
        classes=[],
        shared="",
        predict="",
        seen=[],
        numbers={},
        history=[],
    )


def new_key() -> str:
    return secrets.token_hex(16)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text_like(words: str, pattern: str) -> Kind:
    return Kind(words, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)))


FINITE = Kind("a number that is finite", lambda value: NUMBER.holds(value) and math.isfinite(value))
POSITIVE = Kind("a number above 0", lambda value: AMOUNT.holds(value) and value > 0)
DIGEST = _text_like("a SHA-256", "[0-9a-f]{64}")
OBJECT = _text_like("the SHA-256 of an object", "([0-9a-f]{64})?")  # "" for none
KEY = _text_like("a key", "([0-9a-f]{2}){0,64}")
REF = Keys({"number": FROM_1, "sha256": DIGEST})
BACKBONE = Keys(
    {
        **{"tag": WORD, "sha256": WORD, "size": FROM_1, "resize": FROM_1},
        **{"mean": [FINITE], "std": [POSITIVE]},
    },
    {"interpolation": WORD, "crop": WORD, "file": WORD},
)
CLASS = Keys(
    {
        **{"id": COUNT, "name": WORD, "images": COUNT, "pixels": COUNT},
        **{"learned": WORD, "updated": WORD, "record": OBJECT},
    }
)
VERSION = Keys(
    {
        **{"number": FROM_1, "parent": Maybe(REF), "made_by": WORD, "backbone": BACKBONE},
        **{"method": WORD, "settings": Each(ANYTHING), "seed": COUNT, "flip": FLAG},
        **{"key": KEY, "next_id": COUNT, "classes": [CLASS]},
        **{"shared": OBJECT, "predict": DIGEST, "seen": [OBJECT], "numbers": Each(FINITE)},
        "history": [Keys({"did": WORD, "when": WORD, "version": FROM_1})],
    },
    {"derived": DIGEST},
)
LEARNED = Keys({"name": WORD, "new": FLAG, "images": COUNT})
STEPS: Mapping[str, Keys] = {  # what is read of each step, beside what it did and when
    "learn": Keys(
        {"classes": [LEARNED], "accuracy": Maybe(NUMBER), "how": WORD},
        {"alike": [Keys({"name": WORD, "other": WORD})]},
    ),
    "forget": Keys({"classes": [WORD], "for_good": FLAG}),
    "rename": Keys({"old": WORD, "new": WORD}),
    "merge": Keys({"models": [WORD], "classes": COUNT}),
}
POINTER = Keys({"version": FROM_1, "sha256": DIGEST}, {"oldest": FROM_1})


def to_json(version: Version) -> dict[str, Any]:
    content = {"format": FORMAT, **vars(version), "backbone": asdict(version.backbone)}
    content["parent"] = None if version.parent is None else asdict(version.parent)
    content["classes"] = [vars(record) for record in version.classes]  # as dicts, not copied
    if not version.derived:
        content["format"] = OF_FEW
        del content["derived"]
    return content


def as_text(version: Version) -> str:
    """Return what its file says; of many classes on one line, which is written faster."""
    return (
        json.dumps(to_json(version), indent=None if version.derived else 1, ensure_ascii=False)
        + "\n"
    )


def from_json(content: Any, file: object) -> Version:
    require_format(content, file)
    try:
        _require_countable(content)
        if content["format"] == 1:
            content = _of_format_1(content)
        if content["format"] < 4:
            content = {**content, "flip": _last_flip(content["history"])}
        require_shape(content, VERSION)
        parent = content["parent"]
        known = {
            **{key: value for key, value in content.items() if key != "format"},
            "parent": None if parent is None else VersionRef(**parent),
            "backbone": BackboneRecord(**content["backbone"]),
            "classes": [ClassRecord(**record) for record in content["classes"]],
        }
        version = Version(**known)
        _check(version)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DafuseError(f"{file} is not a version of a dafuse model: {error}") from None
    return version


def pointers_from_json(content: Any, file: object) -> tuple[VersionRef, int]:
    """Return the current version and the number of the oldest, as model.json names them."""
    require_format(content, file)
    try:
        _require_countable(content)
        require_shape(content, POINTER)
        oldest = content.get("oldest", 1)
        _require(oldest <= content["version"], "the oldest version is newer than that")
    except ValueError as error:
        raise DafuseError(f"{file} is not of a dafuse model: {error}") from None
    return VersionRef(content["version"], content["sha256"]), oldest


def _check(version: Version) -> None:
    """Refuse, by `ValueError`, what has the shape of a version and would never be written."""
    parent = version.parent
    _require(parent is None or parent.number < version.number, "its parent is no earlier version")
    require_possible(version.backbone.preprocessing)
    require_taught_names(version.names)
    ids = {record.id for record in version.classes}
    _require(len(ids) == len(version.classes), "two classes have the same id")
    _require(len(set(version.names)) == len(version.names), "two classes have the same name")
    _require(version.next_id > max(ids, default=-1), "its next class has the id of another")
    for number, step in enumerate(version.history):
        did = step["did"]
        _require(did in STEPS, f"its history tells of {did!r}, which dafuse does not do")
        require_shape(step, STEPS[did], f"history[{number}]")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _require_countable(value: Any, depth: int = 0) -> None:
    """Refuse whole numbers larger, and lists nested deeper, than anything of ours."""
    _require(depth <= DEEPEST_VERSION, "it is nested too deeply")
    if isinstance(value, int):
        _require(abs(value) < LARGEST, "a number in it is too large")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _require_countable(one, depth + 1)


def _of_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """Return the same in format 2: models of format 1 were taught by DAF alone."""
    calibration = content["calibration"]
    cosines = 20.0  # what cosines were multiplied by
    accuracy = content["step"].get("held_out_accuracy")
    step = {**content["step"], "accuracy": accuracy, "how": "held out"}
    return {
        **{name: content[name] for name in ("format", "number", "parent", "made_by", "backbone")},
        **{name: content[name] for name in ("settings", "seed", "next_id")},
        "method": "daf",
        "key": "",
        "classes": [
            {**{k: v for k, v in one.items() if k != "statistics"}, "record": one["statistics"]}
            for one in content["classes"]
        ],
        "shared": content["adapter"],
        "predict": content["classifier"],
        "seen": [],
        "numbers": {
            "tasks": float(content["tasks"]),
            "held_out": float(calibration["images"]),
            "precision": float(calibration["precision"]),
            "cosine": 1.0,
            "bend": 0.0,
            "sharpness": cosines * calibration["sharpness"],
            "energy": cosines,
            "threshold": calibration["threshold"],
        },
        "history": [{"version": content["number"], **step}],
    }


def _last_flip(history: list[dict[str, Any]]) -> bool:
    """Return whether the last lesson that trained used mirrored images; True before the first."""
    return bool(next((step["flip"] for step in reversed(history) if "flip" in step), True))


def require_format(content: Any, file: object, readable: int = FORMAT) -> None:
    """Refuse what is not ours, and what a later dafuse wrote."""
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is not int or found < 1:
        raise DafuseError(f"{file} is not of a dafuse model")
    if found > readable:
        raise DafuseError(
            f"{file} has format {found}, this dafuse reads up to {readable}: install a newer dafuse"
        )


def differences(one: Version, other: Version) -> list[str]:
    """Return in what two models differ that no step changes."""
    parts = ("backbone", "method", "settings", "seed")
    return [part for part in parts if getattr(one, part) != getattr(other, part)]

"""A version as the JSON of its file, and back. What is read is checked, whoever wrote it.

A file whose hash is right may still have been made by hand, to harm who opens it: so every record
has the types of `product.version`, every number is one that can be counted with, and class names
are held to the rule by which they were taught.
"""

import math
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dafuse.backbones.card import read_preprocessing
from dafuse.data.names import taught_name
from dafuse.errors import DafuseError
from dafuse.product.version import BackboneRecord, ClassRecord, Version, VersionRef

FORMAT = 3  # 2: without interpolation, crop and file of the backbone
LARGEST = 2**53  # of whole numbers: floats count up to there
DEEPEST = 8  # lists and objects within each other
DIGEST = re.compile("[0-9a-f]{64}")
KEY = re.compile("([0-9a-f]{2}){0,64}")
STEPS: dict[str, dict[str, Any]] = {  # what is read of each, beside what it did and when
    "learn": {"classes": list[dict[str, Any]], "accuracy": float | None, "how": str},
    "forget": {"classes": list[str], "for_good": bool},
    "rename": {"old": str, "new": str},
    "merge": {"models": list[str], "classes": int},
}
LEARNED = {"name": str, "new": bool, "images": int}
ALIKE = {"name": str, "other": str}
HINTS = {one: get_type_hints(one) for one in (Version, VersionRef, BackboneRecord, ClassRecord)}


def to_json(version: Version) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(version)}


def from_json(content: Any, file: object) -> Version:
    require_format(content, file)
    try:
        _require_countable(content)
        if content["format"] == 1:
            content = _of_format_1(content)
        parent = content["parent"]
        known = {
            **{key: value for key, value in content.items() if key != "format"},
            "parent": None if parent is None else VersionRef(**parent),
            "backbone": BackboneRecord(**content["backbone"]),
            "classes": [ClassRecord(**record) for record in content["classes"]],
        }
        if known.keys() != {field.name for field in fields(Version)}:
            raise KeyError(*known.keys())
        version = Version(**known)
        _check(version)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DafuseError(f"{file} is not a version of a dafuse model: {error}") from None
    return version


def pointers_from_json(content: Any, file: object) -> tuple[VersionRef, int]:
    """Return the version that counts and the number of the oldest, as model.json names them."""
    require_format(content, file)
    try:
        current = VersionRef(content["version"], content["sha256"])
        oldest = content.get("oldest", 1)
        _require_countable(content)
        _require_types(current, "it")
        _require(_is_of(oldest, int) and 1 <= oldest <= current.number, "its numbers cannot be")
        _require(bool(DIGEST.fullmatch(current.sha256)), "its hash of the version is none")
    except (KeyError, ValueError):
        raise DafuseError(f"{file} is not of a dafuse model") from None
    return current, oldest


def _check(version: Version) -> None:
    """Refuse, by `ValueError`, what dafuse would not have written."""
    _require_types(version, "it")
    _require(version.number >= 1, "its number is below 1")
    for ref in [version.parent] if version.parent else []:
        _require_types(ref, "its parent")
        _require(1 <= ref.number < version.number, "its parent is not an earlier version")
        _require(bool(DIGEST.fullmatch(ref.sha256)), "the hash of its parent is none")
    _check_backbone(version.backbone)
    for record in version.classes:
        _require_types(record, "a class")
        _require(min(record.id, record.images, record.pixels) >= 0, "a count is below 0")
        try:
            taught_name(record.name)
        except DafuseError as error:
            raise ValueError(error) from None
    ids = {record.id for record in version.classes}
    _require(len(ids) == len(version.classes), "two classes have the same id")
    _require(len(set(version.names)) == len(version.names), "two classes have the same name")
    _require(version.next_id > max(ids, default=-1), "its next class has the id of another")
    _require(all(map(DIGEST.fullmatch, version.objects)), "the name of an object is no hash")
    _require(version.predict != "", "it has no object that predicts")
    _require(version.seed >= 0, "its seed is below 0")
    _require(bool(KEY.fullmatch(version.key)), "its key is none")
    _require(all(map(math.isfinite, version.numbers.values())), "a number of it is none")
    for step in version.history:
        _check_step(step)


def _check_backbone(backbone: BackboneRecord) -> None:
    _require_types(backbone, "its backbone")
    read_preprocessing(asdict(backbone.preprocessing))
    _require(all(math.isfinite(one) for one in backbone.mean), "the backbone's mean is no number")
    _require(all(0 < one < math.inf for one in backbone.std), "the backbone's std is not positive")


def _check_step(step: dict[str, Any]) -> None:
    _require_keys(step, {"did": str, "when": str, "version": int}, "a step of its history")
    did = step["did"]
    _require(did in STEPS, f"its history tells of {did!r}, which dafuse does not do")
    _require_keys(step, STEPS[did], f"a step of its history ({did})")
    for one in step["classes"] if did == "learn" else []:
        _require_keys(one, LEARNED, "a class in its history")
    for one in step.get("alike", []) if did == "learn" else []:
        _require_keys(one, ALIKE, "a pair in its history")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _require_types(record: Any, what: str) -> None:
    """Hold each field of a record to the type it was declared with."""
    for name, hint in HINTS[type(record)].items():
        _require(_is_of(getattr(record, name), hint), f"{what} has no {name} that can be")


def _require_keys(record: Any, hints: dict[str, Any], what: str) -> None:
    _require(isinstance(record, dict), f"{what} is no record")
    for name, hint in hints.items():
        _require(name in record and _is_of(record[name], hint), f"{what} has no {name} that can be")


def _is_of(value: Any, hint: Any) -> bool:
    """Whether JSON gave what the hint says; a float may be whole, a number is no bool."""
    origin, inner = get_origin(hint), get_args(hint)
    checks: dict[Any, Callable[[], bool]] = {
        Any: lambda: True,
        UnionType: lambda: any(_is_of(value, one) for one in inner),
        Literal: lambda: value in inner,
        list: lambda: isinstance(value, list) and all(_is_of(one, inner[0]) for one in value),
        dict: lambda: isinstance(value, dict) and all(_is_of(v, inner[1]) for v in value.values()),
        float: lambda: isinstance(value, int | float) and not isinstance(value, bool),
        int: lambda: isinstance(value, int) and not isinstance(value, bool),
    }
    check = checks.get(origin or hint)
    return isinstance(value, hint) if check is None else check()


def _require_countable(value: Any, depth: int = 0) -> None:
    """Refuse whole numbers that no float holds, and what is nested deeper than anything of ours."""
    _require(depth <= DEEPEST, "it is nested too deeply")
    if isinstance(value, int):
        _require(abs(value) < LARGEST, "a number in it is too large")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _require_countable(one, depth + 1)


def _of_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """The same as format 2 has it: models were taught by DAF alone."""
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


def require_format(content: Any, file: object, readable: int = FORMAT) -> None:
    """Refuse what is not ours, and what a later dafuse wrote."""
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is not int or found < 1:
        raise DafuseError(f"{file} is not of a dafuse model")
    if found > readable:
        raise DafuseError(
            f"{file} has format {found}, this dafuse reads up to {readable}: install a newer dafuse"
        )

"""What a version of a model says about itself: plain records, and JSON and back."""

from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from dafuse import __version__
from dafuse.data.names import composed
from dafuse.errors import DafuseError

FORMAT = 1


@dataclass(frozen=True)
class ClassRecord:
    """A class as it is known now."""

    id: int  # stays the same when the class is renamed or taught more
    name: str
    images: int  # that its statistics were measured on
    pixels: int  # numbers in those images: height x width x 3 of each
    learned: str  # when first
    updated: str  # when last
    statistics: str  # SHA-256 of the object with its mean and covariance


@dataclass(frozen=True)
class BackboneRecord:
    """The frozen network, which is not in the folder, and what its images must look like."""

    tag: str
    sha256: str
    size: int
    mean: list[float]
    std: list[float]
    resize: int


@dataclass(frozen=True)
class Calibration:
    """How sure the model may be, and what it takes for unlike everything it knows."""

    images: int = 0  # held out to find the sharpness, in all steps so far
    sharpness: float = 1.0  # what logits are multiplied by: 1 / temperature
    precision: float = 0.0  # of the sharpness: how much held-out images say about it
    threshold: float = 0.0  # familiarity below which an image is answered "unknown"


@dataclass(frozen=True)
class Parent:
    """The version before, that `undo` goes back to."""

    number: int
    sha256: str


@dataclass(frozen=True)
class Version:
    number: int
    parent: Parent | None
    made_by: str  # the version of dafuse
    step: dict[str, Any]  # what made this version of the one before
    backbone: BackboneRecord
    settings: dict[str, Any]  # of the method, every option
    seed: int
    tasks: int  # adapters trained so far
    next_id: int  # of classes
    adapter: str  # SHA-256 of the object with the adapters
    classifier: str  # SHA-256 of the object with a row for each class
    classes: list[ClassRecord]  # in the order of the rows
    calibration: Calibration

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.classes]

    @property
    def flip(self) -> bool:
        """Whether the last lesson was taught mirrored, too, as a first one is unless told."""
        return bool(self.step.get("flip", True))

    @property
    def objects(self) -> set[str]:
        """Every object this version needs."""
        return {self.adapter, self.classifier, *(record.statistics for record in self.classes)}

    def position(self, name: str) -> int:
        """The row of a class, or one line that says there is none of that name."""
        names = list(map(composed, self.names))  # a terminal may spell an accent in another way
        if composed(name) not in names:
            raise DafuseError(
                f"no class is called {name!r}; there are {', '.join(sorted(self.names)[:12])}"
                + (" ..." if len(self.names) > 12 else "")
            )
        return names.index(composed(name))

    def next(self, step: dict[str, Any], sha256: str, **changes: Any) -> "Version":
        """The version after this one, whose own file has this hash (version 0 has no file).

        A step that is no lesson says, too, how the last lesson was taught: forgetting for good may
        remove the version that said so.
        """
        parent = Parent(self.number, sha256) if self.number else None
        step = {**step, "flip": self.flip} if self.number else step
        return replace(
            self, number=self.number + 1, parent=parent, made_by=__version__, step=step, **changes
        )


def blank(backbone: BackboneRecord, settings: dict[str, Any], seed: int) -> Version:
    """Version 0: a model that has learned nothing. It is never written."""
    return Version(
        number=0,
        parent=None,
        made_by=__version__,
        step={},
        backbone=backbone,
        settings=settings,
        seed=seed,
        tasks=0,
        next_id=0,
        adapter="",
        classifier="",
        classes=[],
        calibration=Calibration(),
    )


def to_json(version: Version) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(version)}


def from_json(content: Any, file: object) -> Version:
    require_format(content, file)
    try:
        parent, calibration = content["parent"], content["calibration"]
        known = {
            **{key: value for key, value in content.items() if key != "format"},
            "parent": None if parent is None else Parent(**parent),
            "backbone": BackboneRecord(**content["backbone"]),
            "calibration": Calibration(**calibration),
            "classes": [ClassRecord(**record) for record in content["classes"]],
        }
        if known.keys() != {field.name for field in fields(Version)}:
            raise KeyError(*known.keys())
        return Version(**known)
    except (KeyError, TypeError) as error:
        raise DafuseError(f"{file} is not a version of a dafuse model: {error}") from None


def require_format(content: Any, file: object, readable: int = FORMAT) -> None:
    """Refuse what is not ours, and what a later dafuse wrote."""
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise DafuseError(f"{file} is not of a dafuse model")
    if content["format"] > readable:
        raise DafuseError(
            f"{file} has format {content['format']}, this dafuse reads up to {readable}: "
            "install a newer dafuse"
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""What a version of a model says about itself: plain records. `version_file` has their JSON."""

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dafuse import __version__
from dafuse.backbones.extractor import Extractor
from dafuse.data.names import composed
from dafuse.data.preprocessing import Crop, Interpolation, Preprocessing
from dafuse.errors import DafuseError, did_you_mean
from dafuse.taught.table import entry_of


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
    """The frozen network, which is not in the folder, and what its images must look like."""

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
    def of(cls, eye: Extractor) -> "BackboneRecord":
        looks = asdict(eye.preprocessing)
        looks |= {"mean": list(looks["mean"]), "std": list(looks["std"])}
        file = "" if eye.file is None else str(eye.file.absolute())
        return cls(eye.tag, eye.sha256, **looks, file=file)

    @property
    def preprocessing(self) -> Preprocessing:
        looks = (self.resize, self.interpolation, self.crop)
        return Preprocessing(self.size, tuple(self.mean), tuple(self.std), *looks)

    def require_size_of(self, eye: Extractor) -> None:
        """Raise ValueError if images have another size here than the network takes."""
        if self.size != eye.pixels:
            raise ValueError(
                f"it has images of {self.size} pixels a side, and {eye.tag} takes {eye.pixels}"
            )


@dataclass(frozen=True)
class VersionRef:
    """Another version, by its number and the hash of its file."""

    number: int
    sha256: str


@dataclass(frozen=True)
class Version:
    number: int
    parent: VersionRef | None  # the version before, that `undo` goes back to
    made_by: str  # the version of dafuse
    backbone: BackboneRecord
    method: str
    settings: dict[str, Any]  # of the method, every option
    seed: int
    flip: bool  # whether a lesson trains on mirrored images, too, unless it says otherwise
    key: str  # random: pictures that were taught are recognised by a hash with this key
    next_id: int  # of classes
    classes: list[ClassRecord]  # in the order of the class weights
    shared: str  # SHA-256 of the object with what is kept of all classes together; "" for nothing
    predict: str  # SHA-256 of the object that features are answered with
    seen: list[str]  # SHA-256 of each object with hashes of pictures taught
    numbers: dict[str, float]  # of the method: temperature, threshold and the like
    history: list[dict[str, Any]]  # every step so far, this version's own last

    @property
    def step(self) -> dict[str, Any]:
        """What made this version of the one before."""
        return self.history[-1] if self.history else {}

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.classes]

    @property
    def objects(self) -> set[str]:
        """Every object this version needs."""
        records = {one.record for one in self.classes}
        return {self.shared, self.predict, *self.seen, *records} - {""}

    @property
    def lasting(self) -> set[str]:
        """The objects that it needs while another version counts: what predicts can be solved."""
        solved = entry_of(self.method, self.settings).solves_again
        return self.objects - ({self.predict} if solved else set())

    def seen_by(self, eye: Extractor) -> "Version":
        """The same version, with the place where the file of its network lies now."""
        if eye.file is None:
            return self
        return replace(self, backbone=replace(self.backbone, file=str(eye.file.absolute())))

    def position(self, name: str) -> int:
        """The number of a class, or one line that says there is none of that name."""
        names = list(map(composed, self.names))  # a terminal may spell an accent in another way
        if composed(name) not in names:
            raise DafuseError(
                f"no class is called {name!r}; there are {', '.join(sorted(self.names)[:12])}"
                + (" ..." if len(self.names) > 12 else "")
                + did_you_mean(name, self.names)
            )
        return names.index(composed(name))

    def next(self, step: dict[str, Any], sha256: str, **changes: Any) -> "Version":
        """The version after this one, whose own file has this hash (version 0 has no file)."""
        number = self.number + 1
        parent = VersionRef(self.number, sha256) if self.number else None
        history = [*self.history, {"version": number, **step}]
        changes = {"made_by": __version__, "history": history, **changes}
        return replace(self, number=number, parent=parent, **changes)


def blank(
    backbone: BackboneRecord, method: str, settings: dict[str, Any], seed: int, key: str
) -> Version:
    """Version 0: a model that has learned nothing. It is never written."""
    return Version(
        number=0,
        parent=None,
        made_by=__version__,
        backbone=backbone,
        method=method,
        settings=settings,
        seed=seed,
        flip=True,
        key=key,
        next_id=0,
        classes=[],
        shared="",
        predict="",
        seen=[],
        numbers={},
        history=[],
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

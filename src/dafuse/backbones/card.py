"""The card inside a dafuse .onnx file: text properties, the last of which is its checksum.

No torch here.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, get_args

from dafuse.backbones.depths import FeaturePart, What
from dafuse.data.preprocessing import CROPS, INTERPOLATIONS, Preprocessing
from dafuse.errors import DafuseError
from dafuse.shapes import COUNT, FROM_1, NUMBER, WORD, Keys, Kind, require_shape

LARGEST_SIDE = 4096  # max pixels of the side that an image is resized to
MOST_BYTES = 2_000_000_000  # bytes of weights; a protobuf ends at 2 GiB
FORMAT = 2  # 1: without the widths of parts
PREFIX = "dafuse."
SEAL = "sha256_of_all_before"
INPUT = "pixels"
# for people who have the file but not dafuse
IMAGES = {
    "input": "pixels: float32 [N, 3, size, size], RGB, 0 to 255 (the graph applies mean and std)",
    "resize_and_crop": "the short side to `resize`, then the centre square of `size`; with crop "
    "squash both sides to `resize`",
    "interpolation": "as `interpolation` says, antialiased, as Pillow's",
}
FEATURES = {
    "outputs": "features [N, F] at several depths, each named as in `parts`, which says what they "
    "are made of, in order: level (a block or a stage, from 0), what (cls, pooled, or mean or std "
    "of its patches or positions), width (how many numbers)",
}

CHUNK = 2**20  # bytes that are hashed at once
# an entry of TensorProto.external_data as protobuf has it: its key, the length of a name, the name
LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])(.{1,127})", re.DOTALL)


LINE = Kind("a text of one line", lambda value: WORD.holds(value) and value.isprintable())
VALUE = Kind("a number", lambda value: NUMBER.holds(value) and value == value)  # not NaN
LOOKS = Keys({"size": FROM_1, "resize": FROM_1, "mean": [VALUE], "std": [VALUE]})
SHAPE = Keys({"tag": LINE, "sha256": LINE, "made_by": LINE, "width": FROM_1, "depth": FROM_1})


@dataclass(frozen=True)
class BackboneCard:
    """The description of a file that gives features."""

    tag: str
    sha256: str  # of the weights file
    preprocessing: Preprocessing
    width: int  # columns of the feature for the whole image at the last level
    depth: int  # number of levels
    parts: dict[str, list[FeaturePart]]  # the parts of each output, in order
    made_by: str  # the version of dafuse

    def properties(self) -> dict[str, str]:
        content = {"backbone_format": FORMAT, **asdict(self), "how_to": IMAGES | FEATURES}
        return as_properties(content)


def read_backbone_card(properties: Mapping[str, str], file: object) -> BackboneCard:
    if PREFIX + "backbone_format" not in properties:
        raise DafuseError(
            f"{file} is not a backbone exported by dafuse: it does not describe its features"
        )
    content = read_properties(properties, file)
    try:
        if content["backbone_format"] != FORMAT:
            raise DafuseError(
                f"{file} has format {content['backbone_format']!r}, this dafuse reads {FORMAT}: "
                "export it again with this dafuse (dafuse backbone export)"
            )
        known = {field.name: content[field.name] for field in fields(BackboneCard)}
        known["preprocessing"] = read_preprocessing(known["preprocessing"])
        known["parts"] = {
            depths: [_part(*part) for part in parts] for depths, parts in known["parts"].items()
        }
        require_shape(known, SHAPE)
        return BackboneCard(**known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DafuseError(f"{file} is damaged: its properties cannot be read ({error})") from None


def _part(level: int, what: What, width: int) -> FeaturePart:
    require_shape({"level": level, "width": width}, Keys({"level": COUNT, "width": FROM_1}))
    if what not in get_args(What):
        raise ValueError(f"what is read must be one of {', '.join(get_args(What))}, not {what!r}")
    return FeaturePart(level, what, width)


def require_fits(tag: str, size: int, instead: str = "") -> None:
    """Refuse a network with more bytes of weights than an .onnx file can hold."""
    if size > MOST_BYTES:
        raise DafuseError(
            f"{tag} has {size / 1e9:.1f} GB of weights, an .onnx file holds at most "
            f"{MOST_BYTES / 1e9:.1f} GB{instead}"
        )


def as_properties(content: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as JSON, under a prefixed name."""
    return {PREFIX + name: json.dumps(value, ensure_ascii=False) for name, value in content.items()}


def read_properties(properties: Mapping[str, str], file: object) -> dict[str, Any]:
    """Return dafuse's properties as they were before `as_properties`."""
    ours = {key: text for key, text in properties.items() if key.startswith(PREFIX)}
    try:
        return {key.removeprefix(PREFIX): json.loads(text) for key, text in ours.items()}
    except (ValueError, RecursionError) as error:
        raise DafuseError(f"{file} is damaged: its properties cannot be read ({error})") from None


def read_preprocessing(looks: Mapping[str, Any]) -> Preprocessing:
    """Undo `asdict`; raise ValueError or TypeError if the values are impossible."""
    require_shape(looks, LOOKS)
    preprocessing = Preprocessing(
        **{**looks, "mean": tuple(looks["mean"]), "std": tuple(looks["std"])}
    )
    require_possible(preprocessing)
    return preprocessing


def require_possible(looks: Preprocessing) -> None:
    """Raise ValueError if no image can be preprocessed so."""
    if max(looks.size, looks.resize) > LARGEST_SIDE:
        raise ValueError(f"no network sees more than {LARGEST_SIDE} pixels a side")
    if looks.resize < looks.size:
        raise ValueError(f"an image of {looks.resize} pixels has no square of {looks.size}")
    if not len(looks.mean) == len(looks.std) == 3:
        raise ValueError("mean and std must be 3 numbers each")
    if looks.interpolation not in INTERPOLATIONS or looks.crop not in CROPS:
        raise ValueError(f"there is no {looks.interpolation!r} with crop {looks.crop!r}")


def sealed_onnx(content: bytes) -> bytes:
    """Append a last property to a serialised model: the SHA-256 of all bytes before it.

    In a protobuf, appending an entry to a list leaves the rest valid, so this is the same model.
    """
    return content + _seal(hashlib.sha256(content).hexdigest())


def require_sealed_onnx(file: Path) -> None:
    """Refuse a file that does not end in the SHA-256 of all bytes before."""
    expected, end = _seals(file)
    if end == expected:
        return
    if SEAL.encode() in end:
        raise DafuseError(f"{file} is damaged or was changed: bring back a copy, or export again")
    raise DafuseError(
        f"{file} does not end in dafuse's checksum: it is cut off or damaged, or another program "
        "or an older dafuse wrote it; write it again (dafuse export, dafuse backbone export)"
    )


def is_sealed_onnx(file: Path) -> bool:
    """Tell whether the file ends in the SHA-256 of all bytes before."""
    expected, end = _seals(file)
    return end == expected


def files_beside(file: Path) -> list[str]:
    """Return the names of files with the graph's weights, which its seal does not cover."""
    with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        names = {match[2][: match[1][0]] for match in re.finditer(LOCATION, content)}
    return sorted(name.decode(errors="replace") for name in names)


def _seals(file: Path) -> tuple[bytes, bytes]:
    """Return the seal that the file should end in, and its actual end."""
    digest, left = hashlib.sha256(), file.stat().st_size - len(_seal("0" * 64))
    with file.open("rb") as stream:
        while left > 0 and (part := stream.read(min(CHUNK, left))):
            digest.update(part)
            left -= len(part)
        return _seal(digest.hexdigest()), stream.read()


def _seal(digest: str) -> bytes:
    """Return the property in protobuf: an entry of ModelProto.metadata_props, which is field 14."""
    entry = _field(1, SEAL.encode()) + _field(2, digest.encode())
    return _field(14, entry)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of fewer than 128 bytes: its number and type, its length, its content."""
    return bytes([number << 3 | 2, len(content)]) + content

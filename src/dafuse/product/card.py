"""What an exported model says about itself, as the text properties of its file. No torch here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.product.version import require_format

FORMAT = 1
PREFIX = "dafuse."
INPUT = "pixels"
OUTPUTS = ("logits", "probabilities", "familiarity")
# for whoever has the file and not dafuse
HOW_TO = {
    "input": "pixels: float32 [N, 3, size, size], RGB, 0 to 255 (the graph applies mean and std)",
    "resize_and_crop": "the short side to `resize`, then the centre square of `size`",
    "interpolation": "bicubic, antialiased, as Pillow's",
    "outputs": "logits [N, C]; probabilities [N, C], softmax(logits / temperature); familiarity "
    "[N], logsumexp(logits): below `threshold` the answer is unknown",
}


@dataclass(frozen=True)
class Card:
    classes: list[str]  # in the order of the columns
    preprocessing: Preprocessing
    temperature: float
    threshold: float
    backbone: str  # its tag
    backbone_sha256: str
    model_version: int
    weights: str  # float32, or int8
    made_by: str  # the version of dafuse

    def properties(self) -> dict[str, str]:
        """Each value as JSON, by a name of its own."""
        content = {"format": FORMAT, **asdict(self), "how_to": HOW_TO}
        return {
            PREFIX + name: json.dumps(value, ensure_ascii=False) for name, value in content.items()
        }


def read_card(properties: Mapping[str, str], file: object) -> Card:
    ours = {key: text for key, text in properties.items() if key.startswith(PREFIX)}
    if not ours:
        raise DafuseError(f"{file} was not made by dafuse export: it says nothing about classes")
    try:
        content: dict[str, Any] = {
            key.removeprefix(PREFIX): json.loads(text) for key, text in ours.items()
        }
        require_format(content, file, FORMAT)
        known = {field.name: content[field.name] for field in fields(Card)}
        looks = known["preprocessing"]
        square = {**looks, "mean": tuple(looks["mean"]), "std": tuple(looks["std"])}
        return Card(**{**known, "preprocessing": Preprocessing(**square)})
    except (KeyError, TypeError, ValueError) as error:
        raise DafuseError(f"{file} is damaged: its properties cannot be read ({error})") from None

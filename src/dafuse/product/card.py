"""What an exported model says about itself, as the text properties of its file. No torch here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.product.version import require_format
from dafuse.vit.card import (
    PICTURES,
    PREFIX,
    as_properties,
    read_preprocessing,
    read_properties,
)

FORMAT = 1
OUTPUTS = ("logits", "probabilities", "familiarity")
HOW_TO = PICTURES | {
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
        return as_properties({"format": FORMAT, **asdict(self), "how_to": HOW_TO})


def read_card(properties: Mapping[str, str], file: object) -> Card:
    if PREFIX + "classes" not in properties:
        raise DafuseError(f"{file} was not made by dafuse export: it says nothing about classes")
    content = read_properties(properties, file)
    try:
        require_format(content, file, FORMAT)
        known = {field.name: content[field.name] for field in fields(Card)}
        return Card(**{**known, "preprocessing": read_preprocessing(known["preprocessing"])})
    except (KeyError, TypeError, ValueError) as error:
        raise DafuseError(f"{file} is damaged: its properties cannot be read ({error})") from None

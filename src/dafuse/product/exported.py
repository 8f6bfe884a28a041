"""Exported models, and what their files say of themselves.

Only numpy, Pillow and onnxruntime are imported here.

from dafuse.product.exported import ExportedModel

pets = ExportedModel("pets.onnx")
print(pets.predict("cat.jpg")[0].name)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from dafuse.data.images import UnreadableImage
from dafuse.data.pictures import AT_ONCE, Picture, in_parts
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.product.predictor import Answering, Scores
from dafuse.product.version import require_format
from dafuse.vit.card import (
    INPUT,
    PICTURES,
    PREFIX,
    as_properties,
    read_preprocessing,
    read_properties,
)
from dafuse.vit.extractor import available_processors, open_session

FORMAT = 1
OUTPUTS = ("logits", "probabilities", "familiarity")
HOW_TO = PICTURES | {
    "outputs": "logits [N, C]; probabilities [N, C], softmax(logits / temperature); familiarity "
    "[N]: below `threshold` the answer is unknown",
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


class ExportedModel(Answering):
    """An .onnx file of `dafuse export`, on the CPU. It answers as the model did."""

    def __init__(self, file: str | Path, threads: int | None = None) -> None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise DafuseError(f"there is no file {path}: make it with dafuse export MODEL {path}")
        self.threads = threads or available_processors()
        self._session = open_session(path, self.threads)
        self.card = read_card(self._session.get_modelmeta().custom_metadata_map, path)

    @property
    def classes(self) -> list[str]:
        return self.card.classes

    @property
    def threshold(self) -> float:
        return self.card.threshold

    def follow(self) -> None:
        """Nothing to do: unlike a model's folder, the file does not learn."""

    def each_scores(self, images: Sequence[Picture]) -> Iterator[Scores | UnreadableImage]:
        cut = self.card.preprocessing.centre_square
        return in_parts(images, AT_ONCE, self._run, cut, self.threads)

    def _run(self, squares: Sequence[np.ndarray]) -> list[Scores]:
        probabilities_NC, familiarity_N = self._session.run(OUTPUTS[1:], {INPUT: np.stack(squares)})
        return [Scores(*one) for one in zip(probabilities_NC, familiarity_N.tolist(), strict=True)]

"""Predictors: a version of a model, or an exported file. They never change. No torch here.

An exported model needs numpy, Pillow and onnxruntime alone:

from dafuse.product.predictor import ExportedModel

pets = ExportedModel("pets.onnx")
print(pets.predict("cat.jpg")[0].name)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dafuse.backbones.card import (
    IMAGES,
    LINE,
    PREFIX,
    VALUE,
    as_properties,
    read_preprocessing,
    read_properties,
)
from dafuse.backbones.extractor import available_processors, computed, open_session
from dafuse.data.class_names import require_taught_names
from dafuse.data.decoding import AT_ONCE, AnyImages, as_list, in_parts, require_read
from dafuse.data.images import AnyImage, UnreadableImage
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.heads.head import Head
from dafuse.product.version import require_format
from dafuse.progress import Progress
from dafuse.shapes import FROM_1, WORD, Keys, require_shape
from dafuse.taught.contract import Encode

if TYPE_CHECKING:
    from dafuse.product.evaluation import Evaluation

FORMAT = 2  # 1: without interpolation and crop of the preprocessing
SHAPE = Keys(  # of a card's values
    {
        **{"classes": [WORD], "temperature": VALUE, "threshold": VALUE, "model_version": FROM_1},
        **{"backbone": LINE, "backbone_sha256": LINE, "weights": LINE, "made_by": LINE},
    }
)
IN_A_BLOCK = 128  # classes of which only the best is looked at first
OUTPUTS = ("logits", "probabilities", "familiarity")
HOW_TO = IMAGES | {
    "outputs": "logits [N, C]; probabilities [N, C], softmax(logits / temperature); familiarity "
    "[N]: below `threshold` the answer is unknown",
}


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    name: str  # of the class; "unknown" where it is like none of them
    probability: float  # of the most probable class, also where the answer is unknown
    unknown: bool
    familiarity: float  # unknown below the threshold
    top: list[tuple[str, float]]  # the most probable classes with their probabilities


def predicted(
    names: Sequence[str],
    probabilities_C: np.ndarray,
    familiarity: float,
    threshold: float,
    top: int = 1,
) -> Prediction:
    if top < 1:
        raise DafuseError(f"top must be at least 1, not {top}")
    best = most_probable(probabilities_C, top)
    named = [(names[row], float(probabilities_C[row])) for row in best]
    unknown = familiarity < threshold
    name, probability = named[0]
    return Prediction("unknown" if unknown else name, probability, unknown, familiarity, named)


def most_probable(probabilities_C: np.ndarray, top: int) -> np.ndarray:
    """Return the classes of the `top` largest, largest first; of equal ones the first.

    Where there are many classes, a sort of all of them takes longer than their scores.
    """
    if top == 1:
        return np.array([probabilities_C.argmax()])
    candidates = np.arange(len(probabilities_C))
    if top * IN_A_BLOCK < len(candidates):  # no class below so many blocks' best is among them
        best_B = np.maximum.reduceat(probabilities_C, candidates[::IN_A_BLOCK])
        candidates = np.flatnonzero(probabilities_C >= np.partition(best_B, -top)[-top])
    order = np.argsort(-probabilities_C[candidates], kind="stable")
    return candidates[order[:top]]


class Scores(NamedTuple):
    """The probabilities and the familiarity of one image."""

    probabilities_C: np.ndarray
    familiarity: float


class Answering(ABC):
    """A model that answers images with classes, wherever its probabilities come from."""

    @property
    @abstractmethod
    def classes(self) -> list[str]:
        """Names, in the order of the columns of `probabilities`."""

    @property
    @abstractmethod
    def threshold(self) -> float:
        """The familiarity below which the answer is "unknown"."""

    @abstractmethod
    def each_scores(self, images: Sequence[AnyImage]) -> Iterator[Scores | UnreadableImage]:
        """Return scores of each image, or why it could not be read, one by one."""

    def predict(
        self, images: AnyImages, top: int = 1, threshold: float | None = None
    ) -> list[Prediction]:
        """Return the answer for each image.

        Args:
            images: paths, Pillow images, uint8 arrays [H, W, 3], bytes of files; one or many
            top: how many classes are named
            threshold: familiarity below which the answer is "unknown"; the default is the model's
                own, and -inf never answers so
        """
        listed = as_list(images)
        return require_read(listed, self.answers(listed, top, threshold))

    def answers(
        self, images: Sequence[AnyImage], top: int = 1, threshold: float | None = None
    ) -> Iterator[Prediction | UnreadableImage]:
        """Do as `predict`, one by one; an image that cannot be read is answered with the reason."""
        threshold = self.threshold if threshold is None else threshold
        for scores in self.each_scores(images):
            if isinstance(scores, UnreadableImage):
                yield scores
            else:
                yield predicted(self.classes, *scores, threshold, top)

    def probabilities(self, images: AnyImages) -> np.ndarray:
        """Return probabilities [N, C], in the order of `classes`."""
        listed = as_list(images)
        rows = [scores.probabilities_C for scores in require_read(listed, self.each_scores(listed))]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)))

    def evaluate(self, root: str | Path, progress: Progress | None = None) -> "Evaluation":
        """Test on images whose classes are known: any source that `learn` takes by its path."""
        from dafuse.data.own_data import images_to_test  # not needed to predict
        from dafuse.product.evaluation import evaluate

        return evaluate(self.classes, self.answers, images_to_test(root), progress or Progress())


class Predictor(Answering):
    """One version of a model, ready to predict. Any number of threads may use it at once."""

    def __init__(
        self, names: list[str], encode: Encode, head: Head, looks: Preprocessing, threads: int
    ) -> None:
        self.names, self.encode, self.head = names, encode, head
        self.preprocessing, self.threads = looks, threads

    @property
    def classes(self) -> list[str]:
        return self.names

    @property
    def threshold(self) -> float:
        return self.head.threshold

    def each_scores(self, images: Sequence[AnyImage]) -> Iterator[Scores | UnreadableImage]:
        def scores_of(squares: list[np.ndarray]) -> list[Scores]:
            feats_NF = self.encode(np.stack(squares))
            if feats_NF.shape[1] != self.head.weights_CF.shape[1]:
                raise DafuseError(
                    f"the class weights are of {self.head.weights_CF.shape[1]:,} features, and the "
                    f"network gives {feats_NF.shape[1]:,}: restore the model from a copy"
                )
            answers = self.head.answers(feats_NF)
            if not all(np.isfinite(one).all() for one in answers):
                raise DafuseError("the answers are no numbers: restore the model from a copy")
            return [Scores(shares_C, float(one)) for shares_C, one in zip(*answers, strict=True)]

        cut = self.preprocessing.centre_square
        return in_parts(images, AT_ONCE, scores_of, cut, self.threads)

    def features(self, images: AnyImages) -> np.ndarray:
        """Return float32 [N, F], the features that tell classes apart."""
        listed = as_list(images)

        def features_of(squares: list[np.ndarray]) -> list[np.ndarray]:
            return list(self.encode(np.stack(squares)))

        cut = self.preprocessing.centre_square
        rows = require_read(listed, in_parts(listed, AT_ONCE, features_of, cut, self.threads))
        return np.stack(rows) if rows else np.zeros((0, self.head.weights_CF.shape[1]), np.float32)


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
        known["preprocessing"] = read_preprocessing(known["preprocessing"])
        require_shape(known, SHAPE)
        if not known["classes"] or len(set(known["classes"])) < len(known["classes"]):
            raise ValueError("the classes must be a list of different names")
        require_taught_names(known["classes"])
        return Card(**known)
    except (KeyError, TypeError, ValueError) as error:
        raise DafuseError(f"{file} is damaged: its properties cannot be read ({error})") from None


class ExportedModel(Answering):
    """An .onnx file of `dafuse export`, on the CPU. It answers as the model did."""

    def __init__(self, file: str | Path, threads: int | None = None) -> None:
        path = self._file = Path(file).expanduser()
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

    @property
    def model(self) -> "ExportedModel":
        """The version that answers: itself. It never changes."""
        return self

    def follow(self) -> None:
        """Do nothing: a file that was opened is not read again."""

    def each_scores(self, images: Sequence[AnyImage]) -> Iterator[Scores | UnreadableImage]:
        cut = self.card.preprocessing.centre_square
        return in_parts(images, AT_ONCE, self._run, cut, self.threads)

    def _run(self, squares: Sequence[np.ndarray]) -> list[Scores]:
        wanted = {"probabilities": (len(self.classes),), "familiarity": ()}
        found = computed(self._session, self._file, np.stack(squares), wanted)
        probabilities_NC, familiarity_N = found
        return [Scores(*one) for one in zip(probabilities_NC, familiarity_N.tolist(), strict=True)]

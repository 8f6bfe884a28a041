"""What predicts: pixels to features, features to answers. It never changes. No torch here."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dafuse.data.images import UnreadableImage
from dafuse.data.pictures import AT_ONCE, Picture, Pictures, as_list, in_parts, require_read
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.heads.head import Head
from dafuse.product.evaluation import Evaluation, evaluate
from dafuse.product.sources import images_to_test
from dafuse.progress import Progress
from dafuse.taught.contract import Encode


@dataclass(frozen=True)
class Prediction:
    """What an image was taken for."""

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
    best = np.argsort(-probabilities_C, kind="stable")[:top]
    named = [(names[row], float(probabilities_C[row])) for row in best]
    unknown = familiarity < threshold
    name, probability = named[0]
    return Prediction("unknown" if unknown else name, probability, unknown, familiarity, named)


class Scores(NamedTuple):
    """What one image is answered."""

    probabilities_C: np.ndarray
    familiarity: float


class Answering(ABC):
    """What answers images with classes, wherever its probabilities come from."""

    @property
    @abstractmethod
    def classes(self) -> list[str]:
        """Names, in the order of the columns of `probabilities`."""

    @property
    @abstractmethod
    def threshold(self) -> float:
        """The familiarity below which the answer is "unknown"."""

    @abstractmethod
    def each_scores(self, images: Sequence[Picture]) -> Iterator[Scores | UnreadableImage]:
        """Of each image, or why it could not be read, as they come."""

    def predict(
        self, images: Pictures, top: int = 1, threshold: float | None = None
    ) -> list[Prediction]:
        """What each image is taken for.

        Args:
            images: paths, Pillow images, uint8 arrays [H, W, 3], bytes of files; one or many
            top: how many classes are named
            threshold: familiarity below which the answer is "unknown"; the default is the model's
                own, and -inf never answers so
        """
        given = as_list(images)
        return require_read(given, self.answers(given, top, threshold))

    def answers(
        self, images: Sequence[Picture], top: int = 1, threshold: float | None = None
    ) -> Iterator[Prediction | UnreadableImage]:
        """As `predict`, one by one, where an image that cannot be read answers with the reason."""
        threshold = self.threshold if threshold is None else threshold
        for scores in self.each_scores(images):
            if isinstance(scores, UnreadableImage):
                yield scores
            else:
                yield predicted(self.classes, *scores, threshold, top)

    def probabilities(self, images: Pictures) -> np.ndarray:
        """[N, C], in the order of `classes`."""
        given = as_list(images)
        rows = [scores.probabilities_C for scores in require_read(given, self.each_scores(given))]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)))

    def evaluate(self, root: str | Path, progress: Progress | None = None) -> Evaluation:
        """Test on images whose classes are known: any source that `learn` takes by its path."""
        return evaluate(self.classes, self.answers, images_to_test(root), progress or Progress())


class Predictor(Answering):
    """One version of a model, ready to predict. Any number of threads may ask it at once."""

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

    def each_scores(self, images: Sequence[Picture]) -> Iterator[Scores | UnreadableImage]:
        def scores_of(squares: list[np.ndarray]) -> list[Scores]:
            answers = self.head.answers(self.encode(np.stack(squares)))
            return [Scores(shares_C, float(one)) for shares_C, one in zip(*answers, strict=True)]

        cut = self.preprocessing.centre_square
        return in_parts(images, AT_ONCE, scores_of, cut, self.threads)

    def features(self, images: Pictures) -> np.ndarray:
        """Float32 [N, F]: what the classes are told apart by."""
        given = as_list(images)

        def features_of(squares: list[np.ndarray]) -> list[np.ndarray]:
            return list(self.encode(np.stack(squares)))

        cut = self.preprocessing.centre_square
        rows = require_read(given, in_parts(given, AT_ONCE, features_of, cut, self.threads))
        return np.stack(rows) if rows else np.zeros((0, self.head.weights_CF.shape[1]), np.float32)

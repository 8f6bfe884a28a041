"""Exported models, without torch: only numpy, Pillow and onnxruntime are imported here.

from dafuse.product.runtime import ExportedModel

pets = ExportedModel("pets.onnx")
print(pets.predict("cat.jpg")[0].name)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dafuse.data.images import UnreadableImage
from dafuse.data.pictures import Picture, Pictures, as_list, in_parts, require_read
from dafuse.errors import DafuseError
from dafuse.product.card import OUTPUTS, read_card
from dafuse.product.evaluation import Evaluation, evaluate
from dafuse.product.pictures import images_to_test
from dafuse.product.prediction import Prediction, predicted
from dafuse.progress import Progress
from dafuse.vit.card import INPUT
from dafuse.vit.extractor import available_processors, open_session

AT_ONCE = 32  # images decoded and predicted together


class Scores(NamedTuple):
    """Of one image."""

    probabilities_C: np.ndarray
    familiarity: float


class ExportedModel:
    """An .onnx file of `dafuse export`, on the CPU. It answers as the model did."""

    def __init__(self, file: str | Path) -> None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise DafuseError(f"there is no file {path}: make it with dafuse export MODEL {path}")
        self._session = open_session(path, available_processors())
        self.card = read_card(self._session.get_modelmeta().custom_metadata_map, path)

    @property
    def classes(self) -> list[str]:
        """Names, in the order of the columns of `probabilities`."""
        return self.card.classes

    def follow(self) -> None:
        """Nothing to do: unlike a model's folder, the file does not learn."""

    def predict(
        self, images: Pictures, top: int = 1, threshold: float | None = None
    ) -> list[Prediction]:
        """What each image is taken for: as `Classifier.predict`."""
        given = as_list(images)
        return require_read(given, self.answers(given, top, threshold))

    def probabilities(self, images: Pictures) -> np.ndarray:
        """[N, C], in the order of `classes`."""
        given = as_list(images)
        rows = [scores.probabilities_C for scores in require_read(given, self.each_scores(given))]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)))

    def answers(
        self, images: Sequence[Picture], top: int = 1, threshold: float | None = None
    ) -> Iterator[Prediction | UnreadableImage]:
        """As `predict`, one by one, where an image that cannot be read answers with the reason."""
        threshold = self.card.threshold if threshold is None else threshold
        for scores in self.each_scores(images):
            if isinstance(scores, UnreadableImage):
                yield scores
            else:
                yield predicted(self.classes, *scores, threshold, top)

    def evaluate(self, root: str | Path, progress: Progress | None = None) -> Evaluation:
        """Test on a folder of class folders: as `Classifier.evaluate`."""
        return evaluate(self.classes, self.answers, images_to_test(root), progress or Progress())

    def each_scores(self, images: Sequence[Picture]) -> Iterator[Scores | UnreadableImage]:
        return in_parts(images, AT_ONCE, self._run, self.card.preprocessing.centre_square)

    def _run(self, squares: Sequence[np.ndarray]) -> list[Scores]:
        probabilities_NC, familiarity_N = self._session.run(OUTPUTS[1:], {INPUT: np.stack(squares)})
        return [Scores(*one) for one in zip(probabilities_NC, familiarity_N.tolist(), strict=True)]

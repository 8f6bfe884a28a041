"""How well a model does on images whose classes are known: accuracy, mistakes, calibration.

No torch here: exported models are evaluated, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dafuse.data.dataset import Dataset
from dafuse.data.images import UnreadableImage
from dafuse.data.names import same_name
from dafuse.engine.calibration import calibration_error
from dafuse.errors import DafuseError
from dafuse.product.prediction import Prediction
from dafuse.progress import Progress

PAIRS = 10  # of confused classes that are shown
Answers = Callable[[Sequence[Path | np.ndarray]], Iterable[Prediction | UnreadableImage]]


@dataclass(frozen=True)
class Score:
    """Some images of one class."""

    name: str
    images: int
    right: int  # the most probable class is theirs, whether or not they were familiar
    unknown: int  # were answered "unknown"


@dataclass(frozen=True)
class Evaluation:
    classes: list[Score]  # that the model knows
    untaught: list[Score]  # that it does not: "unknown" is the right answer
    confused: list[tuple[str, str, int]]  # true class, taken for, how often; the worst first
    calibration_error: float
    skipped: list[str]  # files that could not be read, classes without images, and why

    @property
    def images(self) -> int:
        """Of classes that the model knows."""
        return sum(score.images for score in self.classes)

    @property
    def accuracy(self) -> float:
        return sum(score.right for score in self.classes) / max(1, self.images)

    @property
    def unknown(self) -> float:
        """Share of the images of known classes that were answered "unknown"."""
        return sum(score.unknown for score in self.classes) / max(1, self.images)

    def lines(self) -> list[str]:
        lines = []
        if self.images:
            lines += [
                f"{self.accuracy:.1%} of {self.images} images of {len(self.classes)} classes right",
                f"{self.unknown:.1%} of them answered unknown",
                f"calibration error {self.calibration_error:.3f} "
                "(how far probabilities are from the share that is right)",
                "",
                f"{'class':24} {'right':>7} {'images':>7} {'unknown':>8}",
            ]
        lines += [
            f"{one.name:24} {one.right / one.images:7.1%} {one.images:7} "
            f"{one.unknown / one.images:8.1%}"
            for one in self.classes
        ]
        if self.confused:
            lines += ["", "most confused:"]
            lines += [f"  {true} taken for {other}: {n}" for true, other, n in self.confused]
        if self.untaught:
            lines += ["", "classes that were never taught, where unknown is the right answer:"]
            lines += [
                f"  {one.name}: {one.unknown / one.images:.1%} of {one.images} answered unknown"
                for one in self.untaught
            ]
        return lines if lines[0] else lines[1:]


def evaluate(
    known: Sequence[str], answers: Answers, dataset: Dataset, progress: Progress
) -> Evaluation:
    """Every image of the data set's training part, by a model that knows and answers this.

    A class is the model's whose name `learn` would take for the same.
    """
    taught = {same_name(name): name for name in known}
    classes = [taught.get(same_name(name), name) for name in dataset.classes]
    names = [classes[label] for label in dataset.train.labels]
    images = list(dataset.train.items)
    scores: dict[str, list[int]] = {name: [0, 0, 0] for name in classes}
    confused: Counter[tuple[str, str]] = Counter()
    confidence, correct = [], []
    unreadable: list[str] = []
    with progress.bar("evaluate", len(images)) as bar:
        for image, name, found in zip(images, names, answers(images), strict=True):
            bar.advance()
            if isinstance(found, UnreadableImage):
                unreadable.append(f"{image}: {found}")
                continue
            best, probability = found.top[0]
            score = scores[name]
            score[0] += 1
            score[1] += best == name
            score[2] += found.unknown
            if name in known:
                confidence.append(probability)
                correct.append(best == name)
                if best != name:
                    confused[name, best] += 1
    empty = sorted(set(range(len(classes))) - set(dataset.train.labels.tolist()))
    skipped = [f"{dataset.classes[label]}: no images in this class folder" for label in empty]
    skipped += unreadable
    for line in skipped:
        progress.say(f"skipped {line}")
    if len(unreadable) == len(images):
        raise DafuseError("none of the images can be read")
    tested = [Score(name, *counts) for name, counts in scores.items() if counts[0]]
    return Evaluation(
        classes=[score for score in tested if score.name in known],
        untaught=[score for score in tested if score.name not in known],
        confused=[(*pair, count) for pair, count in confused.most_common(PAIRS)],
        calibration_error=calibration_error(np.array(confidence), np.array(correct)),
        skipped=skipped,
    )

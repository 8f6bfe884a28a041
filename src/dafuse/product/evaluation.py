"""The test of a model on images whose classes are known: accuracy, mistakes, calibration.

An image of a class that the model knows is right when it is answered with that class: "unknown" is
wrong. No torch here: exported models are evaluated, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dafuse.data.class_names import same_name
from dafuse.data.dataset import Dataset, Item, Skipped, in_few_lines
from dafuse.data.images import UnreadableImage
from dafuse.errors import DafuseError
from dafuse.heads.confidence import calibration_error
from dafuse.progress import Progress
from dafuse.wording import counted

if TYPE_CHECKING:
    from dafuse.product.predictor import Prediction

PAIRS = 10  # of confused classes that are shown
Answers = Callable[[Sequence[Item]], "Iterable[Prediction | UnreadableImage]"]


@dataclass(frozen=True)
class Answered:
    """One image that could be read, and its answer."""

    image: Item
    name: str  # of its class
    best: str  # the most probable class, whether or not the image was familiar
    probability: float
    familiarity: float
    unknown: bool  # was the answer, in place of the most probable class

    @property
    def answer(self) -> str:
        """The answer's name: "unknown", or the most probable class."""
        return "unknown" if self.unknown else self.best

    @property
    def right(self) -> bool:
        """Tell whether the answer is the image's class, which the model must know."""
        return self.best == self.name and not self.unknown


@dataclass(frozen=True)
class Score:
    """Some images of one class."""

    name: str
    images: int
    right: int  # were answered with their class
    unknown: int  # were answered "unknown"
    nearest: int  # have their class for the most probable one, whatever was answered


@dataclass(frozen=True)
class Evaluation:
    classes: list[Score]  # that the model knows
    untaught: list[Score]  # that it does not: "unknown" is the right answer
    answered: list[Answered]  # image by image
    confused: list[tuple[str, str, int]]  # true class, taken for, how often; the worst first
    calibration_error: float
    skipped: list[str]  # files that could not be read, classes without images, and why

    @property
    def images(self) -> int:
        """Count of images of classes that the model knows."""
        return sum(score.images for score in self.classes)

    @property
    def accuracy(self) -> float:
        """Share of them that was answered with their class; "unknown" is wrong."""
        return sum(score.right for score in self.classes) / max(1, self.images)

    @property
    def accuracy_without_unknown(self) -> float:
        """The accuracy if "unknown" were never answered."""
        return sum(score.nearest for score in self.classes) / max(1, self.images)

    @property
    def unknown(self) -> float:
        """Share of the images of known classes that were answered "unknown"."""
        return sum(score.unknown for score in self.classes) / max(1, self.images)

    def lines(self) -> list[str]:
        lines = []
        if self.images:
            lines += [
                f"{self.accuracy:.1%} of {counted(self.images, 'image')} of "
                f"{counted(len(self.classes), 'class', 'classes')} right "
                f"({self.unknown:.1%} answered unknown, which counts as wrong; "
                f"{self.accuracy_without_unknown:.1%} right with predict --no-unknown)",
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
    """Evaluate every image of the data set's training part by these answers.

    A class is the model's whose name `learn` would take for the same.
    """
    taught, taught_names = {same_name(name): name for name in known}, set(known)
    classes = [taught.get(same_name(name), name) for name in dataset.classes]
    names = [classes[label] for label in dataset.train.labels]
    images = list(dataset.train.items)
    answered: list[Answered] = []
    unreadable: list[Skipped] = []
    with progress.bar("evaluate", len(images)) as bar:
        for image, name, found in zip(images, names, answers(images), strict=True):
            bar.advance()
            if isinstance(found, UnreadableImage):
                is_pixels = isinstance(image, np.ndarray)
                what = f"image {bar.done - 1}" if is_pixels else str(image)
                unreadable.append(Skipped(what, str(found)))
                continue
            best, probability = found.top[0]
            how = best, probability, found.familiarity, found.unknown
            answered.append(Answered(image, name, *how))
    for line in in_few_lines([*dataset.skipped, *unreadable]):
        progress.say(line)
    if len(unreadable) == len(images):
        raise DafuseError("none of the images can be read")
    by_class: dict[str, list[Answered]] = {name: [] for name in classes}
    for one in answered:
        by_class[one.name].append(one)
    tested = [_score(name, found) for name, found in by_class.items() if found]
    of_known = [one for one in answered if one.name in taught_names]
    wrong = [one for one in of_known if one.best != one.name and not one.unknown]
    confused = Counter((one.name, one.best) for one in wrong)
    return Evaluation(
        classes=[score for score in tested if score.name in taught_names],
        untaught=[score for score in tested if score.name not in taught_names],
        answered=answered,
        confused=[(*pair, count) for pair, count in confused.most_common(PAIRS)],
        calibration_error=calibration_error(
            np.array([one.probability for one in of_known]),
            np.array([one.best == one.name for one in of_known]),
        ),
        skipped=[str(one) for one in (*dataset.skipped, *unreadable)],
    )


def _score(name: str, answered: list[Answered]) -> Score:
    return Score(
        name,
        images=len(answered),
        right=sum(one.right for one in answered),
        unknown=sum(one.unknown for one in answered),
        nearest=sum(one.best == name for one in answered),
    )

"""What one call of learn is made of: new classes, more of known ones, and what is held out."""

from dataclasses import dataclass

import numpy as np

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.names import check_class_names, composed
from dafuse.data.splits import split_per_class
from dafuse.data.stream import Task, of_classes
from dafuse.errors import DafuseError
from dafuse.product.version import Version

HOLDS_OUT = 5  # images that a class must have for some of them to be held out


@dataclass(frozen=True)
class Lesson:
    """Images labelled by the rows of their classes, old rows first."""

    names: list[str]  # of all rows
    task: Task  # the new classes
    more: ImageSet  # of known classes
    held_out: ImageSet  # of both

    @property
    def rows(self) -> list[int]:
        """Of the classes that are in the lesson."""
        return np.unique(np.concatenate([self.more.labels, self.task.train.labels])).tolist()

    def learned(self, row: int) -> ImageSet:
        """The images that a class is learned from."""
        images = self.more if row < self.task.first else self.task.train
        return images.take(images.labels == row)


def plan(version: Version, dataset: Dataset, holdout: float) -> Lesson:
    """Hold out this share of each class of 5 images or more, and at least one of it."""
    if not 0 <= holdout < 1:
        raise DafuseError(f"holdout must be at least 0 and below 1, not {holdout}")
    known = version.names
    as_known = {composed(name): name for name in known}  # older models keep any spelling
    taught = [as_known.get(name, name) for name in dataset.classes]
    check_class_names(map(composed, [*known, *taught]), "the model and the lesson")
    new = [name for name in taught if name not in known]
    names = [*known, *new]
    labels = dataset.train.labels
    is_held_out = split_per_class(labels, dataset.classes, holdout, version.seed)
    is_held_out &= np.bincount(labels)[labels] >= HOLDS_OUT
    images = dataset.train.relabel(np.array([names.index(name) for name in taught]))
    learned, held_out = images.take(~is_held_out), images.take(is_held_out)
    train = of_classes(learned, len(known), len(new))
    nothing = learned.take(np.zeros(0, dtype=np.int64))
    return Lesson(
        names,
        Task(version.tasks, len(known), len(new), new, train, nothing),
        more=of_classes(learned, 0, len(known)),
        held_out=of_classes(held_out, 0, len(names)),
    )

"""The shards of a lesson put together: sums to the method, counts to the report. No torch here."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dafuse.data.dataset import Skipped
from dafuse.errors import DafuseError
from dafuse.product.reading import ReadShard
from dafuse.product.seen import MetSoFar
from dafuse.product.shards import Planned
from dafuse.product.version import Version
from dafuse.progress import Progress
from dafuse.taught.contract import InShards, Lesson, Teachable


@dataclass
class Gathered:
    """The results of all shards of a lesson, whose sums the method has taken up."""

    planned: Planned
    method: Teachable
    met: MetSoFar = field(default_factory=MetSoFar)
    skipped: list[Skipped] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    again: int = 0
    twice: int = 0

    def __post_init__(self) -> None:
        labels = len(self.planned.names)
        self._number_of = np.full(labels, -1)  # of a label, the class in the model
        self._number_of[: self.planned.known] = np.arange(self.planned.known)
        self._images_L, self._pixels_L = np.zeros(labels, np.int64), np.zeros(labels, np.int64)
        self._rows: list[np.ndarray] = []
        self._tried: list[tuple[np.ndarray, np.ndarray]] = []  # rows and labels
        self._feats: list[np.ndarray] = []

    def add(self, part: ReadShard) -> None:
        """Take up what the next shard gave; refuse what was kept of it, if it does not fit."""
        try:
            self._add(part)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            if not part.kept_in:
                raise
            raise DafuseError(
                f"{part.kept_in} is not what dafuse wrote ({error!r}): delete it, and give the "
                "same command again"
            ) from error

    def _add(self, part: ReadShard) -> None:
        labels = len(self.planned.names)
        present = np.unique(part.labels_N)
        new = present[self._number_of[present] < 0]  # labels come in order, and none comes back
        self._number_of[new] = self._number_of.max(initial=-1) + 1 + np.arange(len(new))
        self._images_L += np.bincount(part.labels_N, minlength=labels)
        np.add.at(self._pixels_L, part.labels_N, part.pixels_N)
        if part.sums:
            assert isinstance(self.method, InShards)
            numbers = self._number_of[part.classes_K].tolist()
            self.method.take_up(part.sums, numbers, labels)
        self.met.add(part.hashes_N, part.labels_N[: len(part.hashes_N)])
        self._rows.append(part.rows_N.copy())  # a view would keep all that Ray shipped
        self._tried.append((part.rows_N[part.tried_N], part.labels_N[part.tried_N]))
        if part.feats_TF is not None:
            self._feats.append(part.feats_TF.copy())
        self.skipped += part.skipped
        self.unreadable += part.unreadable
        self.again += part.again
        self.twice += part.twice

    @property
    def rows_N(self) -> np.ndarray:
        """Return which images are learned."""
        return np.concatenate([np.zeros(0, np.int64), *self._rows])

    @property
    def none_is_readable(self) -> bool:
        return len(self.unreadable) == len(self.planned.images)

    @property
    def numbers(self) -> np.ndarray:
        """Return the labels of the model's classes, in their order; some have no images left."""
        labels = np.flatnonzero(self._number_of >= 0)
        return labels[np.argsort(self._number_of[labels])]

    def lesson(self, version: Version, options: dict[str, Any], progress: Progress) -> Lesson:
        """Return what the method is still to learn: the images that are left out in turn."""
        rows_T, labels_T = map(np.concatenate, zip(*self._tried, strict=True))
        before = [record.images for record in version.classes]
        before += [0] * (len(self.numbers) - len(before))
        left = np.bincount(self._number_of[labels_T], minlength=len(before))
        taken_up = self.images_C - left
        return Lesson(
            [self.planned.names[label] for label in self.numbers.tolist()],
            self.planned.known,
            [count + int(more) for count, more in zip(before, taken_up, strict=True)],
            [self.planned.images[row] for row in rows_T.tolist()],
            self._number_of[labels_T],
            np.concatenate(self._feats) if self._feats else None,
            options,
            progress,
        )

    @property
    def images_C(self) -> np.ndarray:
        """Return the number of images to learn of each class of the model."""
        return self._images_L[self.numbers]

    @property
    def pixels_C(self) -> np.ndarray:
        return self._pixels_L[self.numbers]

    def note_unreadable_classes(self) -> None:
        """Name the classes of which no image could be read."""
        labels_N = self.planned.labels_N
        gone_L = np.bincount(labels_N[self.unreadable], minlength=len(self.planned.names))
        all_L = np.bincount(labels_N, minlength=len(self.planned.names))
        for label in np.flatnonzero((all_L > 0) & (gone_L == all_L)).tolist():
            self.skipped.append(
                Skipped(self.planned.names[label], "none of its images can be read")
            )

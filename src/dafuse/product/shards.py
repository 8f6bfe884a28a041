"""The plan of a lesson: its classes, its images, and the shards in which they are read.

A lesson of more images than `SHARD` is cut into shards of that size, its images ordered by class:
then each shard has few classes, and what comes back of it is small. No torch here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dafuse.data.class_names import check_class_names, composed
from dafuse.data.dataset import Dataset, Item
from dafuse.heads.choice import TRIED_ON
from dafuse.product.reading import ReadShard, Shard
from dafuse.product.seen import MetSoFar
from dafuse.product.version import Version
from dafuse.progress import Bar

SHARD = 4096  # images
FEW_NEW = 1 / 4  # share of images to learn, below which they are read as a lesson of their own
# yields the results of shards in their order; knows which images were met in those before
ReadShards = Callable[[list[Shard], MetSoFar, Bar], Iterator[ReadShard]]


@dataclass(frozen=True)
class Planned:
    """A lesson before its images are read: all class names, and the label of each image."""

    names: list[str]  # of all classes, known and new
    known: int
    images: Sequence[Item]
    labels_N: np.ndarray
    size: int | None = None  # of a shard; None: all in one
    tried: int = 0  # images that are left out in turn, where there are several shards

    @property
    def is_cut(self) -> bool:
        """Tell whether there are several shards."""
        return self.size is not None and len(self.images) > self.size

    def shards(self) -> list[Shard]:
        """Return the shards, in their order.

        In a lesson of one shard all images are tried; in others, evenly spaced ones.
        """
        count = len(self.images)
        rows_N, tried_N = np.arange(count), np.ones(count, dtype=bool)
        if not self.is_cut:
            return [self._shard(0, 1, rows_N, tried_N)]
        rows_N = np.argsort(self.labels_N, kind="stable")
        tried_N[:] = False
        tried_N[np.linspace(0, count - 1, min(count, self.tried)).round().astype(np.int64)] = True
        size = self.size or count
        parts = [slice(start, start + size) for start in range(0, count, size)]
        return [
            self._shard(number, len(parts), rows_N[part], tried_N[part])
            for number, part in enumerate(parts)
        ]

    def _shard(self, number: int, of: int, rows_N: np.ndarray, tried_N: np.ndarray) -> Shard:
        images = [self.images[row] for row in rows_N.tolist()]
        return Shard(number, of, rows_N, images, self.labels_N[rows_N], tried_N)

    def only(self, rows_N: np.ndarray) -> "Planned":
        """Return the plan of these images alone, in the order in which they were listed."""
        rows_N = np.sort(rows_N)
        images = [self.images[row] for row in rows_N.tolist()]
        return replace(self, images=images, labels_N=self.labels_N[rows_N])


def are_several(images: int) -> bool:
    """Tell whether a lesson of so many images is cut, if its method takes it so."""
    return images > SHARD


def plan(version: Version, dataset: Dataset, in_shards: bool) -> Planned:
    """Plan the lesson of a data set; one of many images in shards, if the method takes them so."""
    known = version.names
    as_known = {composed(name): name for name in known}  # older models keep any spelling
    taught = [as_known.get(name, name) for name in dataset.classes]
    check_class_names(map(composed, [*known, *taught]), "the model and the lesson")
    names = list(dict.fromkeys([*known, *taught]))
    label_of = {name: label for label, name in enumerate(names)}
    images = dataset.train.relabel(np.array([label_of[name] for name in taught]))
    items = [images.items[int(index)] for index in images.index]
    size = SHARD if in_shards else None
    return Planned(names, len(known), items, images.labels, size, TRIED_ON)

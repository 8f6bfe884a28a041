"""The stream of tasks: which classes come when, and the images that come with them.

Streams without tasks (`data/taskless.py`) are cut into segments at the points of evaluation. A
segment is a `Task` too: its classes are those that first appear in it, perhaps none, and its
training images are all that come in it, known classes included, in the order of the stream.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.errors import DafuseError


@dataclass(frozen=True, eq=False)
class Task:
    """One step of the stream. Labels are positions in the stream's class order."""

    index: int  # 0-based
    first: int  # its classes are first .. first + size - 1
    size: int
    class_names: list[str]
    train: ImageSet
    test: ImageSet

    @property
    def number(self) -> int:
        """The t of the paper: 1, 2, ..."""
        return self.index + 1

    @property
    def seen(self) -> int:
        """The number of classes that are known once this task is learned."""
        return self.first + self.size


class Stream:
    """Tasks cut from a data set by a class order and task sizes.

    Each has the training images of its own classes, unless ``rows`` says which of the data set's
    come in it, and in which order.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Sequence[int],
        sizes: Sequence[int],
        rows: Sequence[np.ndarray] | None = None,
    ) -> None:
        count = len(dataset.classes)
        require_order(order, count)
        if rows is None:
            require_sizes(sizes, count)
        self.classes = [dataset.classes[c] for c in order]
        self.sizes = list(sizes)
        self._rows = rows
        position = np.empty(count, dtype=np.int64)
        position[np.asarray(order)] = np.arange(count)
        self._train = dataset.train.relabel(position)
        self._test = dataset.test.relabel(position)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, size = sum(self.sizes[:index]), self.sizes[index]
        names = self.classes[first : first + size]
        if self._rows is None:
            train = of_classes(self._train, first, size)
        else:
            train = self._train.take(self._rows[index])
        return Task(index, first, size, names, train, of_classes(self._test, first, size))

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    def tests_until(self, task: Task) -> list[ImageSet]:
        """The test images of every task up to this one, a set for each task."""
        return [self[i].test for i in range(task.index + 1)]


def class_order(count: int, order: str | Sequence[int], seed: int) -> list[int]:
    """Return the order of classes: by seed (the field's NumPy permutation), natural, or a list."""
    if order == "seed":
        if not 0 <= seed < 2**32:
            raise DafuseError(f"a seed is a number from 0 to {2**32 - 1}, not {seed}")
        return [int(c) for c in np.random.RandomState(seed).permutation(count)]
    if order == "natural":
        return list(range(count))
    if isinstance(order, str):
        raise DafuseError(f"order must be 'seed', 'natural' or a list of classes, not {order!r}")
    return [int(c) for c in order]


def require_order(order: Sequence[int], count: int) -> None:
    if sorted(order) != list(range(count)):
        raise DafuseError(f"the class order must name each of 0..{count - 1} once")


def require_sizes(sizes: Sequence[int], count: int) -> None:
    if sum(sizes) != count or min(sizes) < 1:
        raise DafuseError(f"the task sizes {list(sizes)} must be positive and sum to {count}")


def task_sizes(count: int, increment: int | Sequence[int]) -> list[int]:
    """Equal tasks of ``increment`` classes with what remains as the last, or the sizes given."""
    if not isinstance(increment, int):
        return [int(size) for size in increment]
    if increment < 1:
        raise DafuseError(f"a task needs at least one class, not {increment}")
    if increment > count:
        raise DafuseError(f"a task of {increment} classes needs more than the {count} there are")
    full, rest = divmod(count, increment)
    return [increment] * full + ([rest] if rest else [])


def of_classes(images: ImageSet, first: int, size: int) -> ImageSet:
    """The images of classes first .. first + size - 1, sorted by class."""
    rows = np.flatnonzero((images.labels >= first) & (images.labels < first + size))
    return images.take(rows[np.argsort(images.labels[rows], kind="stable")])

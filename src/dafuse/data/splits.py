"""Training and test images of a source, divided per class."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.errors import DafuseError
from dafuse.seeds import numpy_generator


def split_per_class(
    labels: np.ndarray, classes: Sequence[str], test_fraction: float, seed: int
) -> np.ndarray:
    """Return a mask of the test images: the rounded fraction of each class, drawn by the seed.

    Every class keeps at least one image to train on and, where it has two or more and the fraction
    is not 0, gets at least one to test on. A class's draw depends on its own name and images only,
    so that classes that come later leave the split of the earlier ones as it was.
    """
    if not 0 <= test_fraction < 1:
        raise DafuseError(f"the test fraction must be at least 0 and below 1, not {test_fraction}")
    is_test = np.zeros(len(labels), dtype=bool)
    by_class = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=len(classes)))
    for name, rows in zip(classes, np.split(by_class, ends[:-1]), strict=True):
        wanted = max(1, round(len(rows) * test_fraction)) if test_fraction else 0
        count = min(wanted, len(rows) - 1)
        if count > 0:
            drawn = numpy_generator(seed, "split", name).permutation(rows)[:count]
            is_test[drawn] = True
    return is_test


def check_test_classes(train: Iterable[str], test: Iterable[str], where: object) -> None:
    """Refuse a test class that nothing can be learned about."""
    if unknown := sorted(set(test) - set(train)):
        raise DafuseError(
            f"{where} has test images but no training images of {first_few(unknown)}: "
            "add training images of each, or take these test images away"
        )


def divide(
    name: str, classes: list[str], paths: list[Path], labels: np.ndarray, is_test: np.ndarray
) -> Dataset:
    """The data set whose test images are those under the mask."""
    sets = []
    for rows in (np.flatnonzero(~is_test), np.flatnonzero(is_test)):
        sets.append(ImageSet([paths[row] for row in rows], labels[rows]))
    return Dataset(name, classes, train=sets[0], test=sets[1])


def first_few(names: Sequence[object], count: int = 3) -> str:
    """Return some names for a one-line message, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(repr(str(name)) for name in names[:count]) + more

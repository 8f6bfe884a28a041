"""Data sets: images that are not decoded yet, their labels, and the class names."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from dafuse.data.stored import StoredImage

Item = Path | StoredImage | np.ndarray  # the last uint8 [H, W, 3] of any size
Items = Sequence[Path] | Sequence[Item] | np.ndarray  # the last uint8 [N, H, W, 3]
Part = Literal["train", "test"]
SHOWN = 3  # files that a line names


class Skipped(NamedTuple):
    """A file, a folder or a part of a source that is skipped, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


class ImageSet:
    """Some images of a source, each with a label. Subsets share the source's items."""

    def __init__(self, items: Items, labels: np.ndarray, index: np.ndarray | None = None) -> None:
        self.items = items  # everything the source has
        self.index = np.arange(len(items)) if index is None else index  # which of them are here
        self.labels = np.asarray(labels, dtype=np.int64)  # one for each of index
        if len(self.index) != len(self.labels):
            raise ValueError(f"{len(self.index)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: np.ndarray) -> "ImageSet":
        """The images at these rows (positions or a mask), in this order."""
        return ImageSet(self.items, self.labels[rows], self.index[rows])

    def relabel(self, new_label_of: np.ndarray) -> "ImageSet":
        """The same images with label y replaced by ``new_label_of[y]``."""
        return ImageSet(self.items, new_label_of[self.labels], self.index)

    @staticmethod
    def join(sets: "Sequence[ImageSet]") -> "ImageSet":
        """The images of several subsets of one source, in their order."""
        if any(s.items is not sets[0].items for s in sets):
            raise ValueError("only subsets of one source can be joined")
        labels = np.concatenate([s.labels for s in sets])
        return ImageSet(sets[0].items, labels, np.concatenate([s.index for s in sets]))


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images: random resized crop, then a flip, as in the field."""

    scale: tuple[float, float] = (0.05, 1.0)  # area of the crop, as a share of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # aspect of the crop
    flip: float = 0.5  # chance of a horizontal flip


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: classes in their natural order, training and test images."""

    name: str
    classes: list[str]
    train: ImageSet
    test: ImageSet
    augmentation: Augmentation = field(default_factory=Augmentation)
    skipped: list[Skipped] = field(default_factory=list)  # of the source, before it was decoded

    def fingerprint(self) -> str:
        """SHA-256 over class names, labels and pixels (of files: their names and sizes)."""
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for images in (self.train, self.test):
            digest.update(np.ascontiguousarray(images.labels).tobytes())
            if isinstance(images.items, np.ndarray):
                digest.update(np.ascontiguousarray(images.items[images.index]).tobytes())
                continue
            for i in images.index:
                item = images.items[int(i)]
                if isinstance(item, np.ndarray):
                    digest.update(np.ascontiguousarray(item).tobytes())
                    continue
                if isinstance(item, StoredImage):
                    digest.update(f"{item} {item.state}\n".encode())
                    continue
                digest.update(f"{item.parent.name}/{item.name} {item.stat().st_size}\n".encode())
        return digest.hexdigest()


class Listed(NamedTuple):
    """One part of a source: images, the name of each one's class, and what was skipped."""

    items: Items
    names: list[str]
    skipped: list[Skipped]


def no_test_part(what: str, source: str) -> Skipped:
    """Say that a source without a test part is tested on its training images."""
    return Skipped("the test part", f"no test {what} in {source}: tested on its training images")


def in_few_lines(skipped: Iterable[Skipped]) -> list[str]:
    """Return a line for each reason: the first files by name, and how many more there are."""
    by_reason: dict[str, list[str]] = {}
    for one in skipped:
        by_reason.setdefault(one.why, []).append(one.name)
    lines = []
    for why, names in by_reason.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"skipped {', '.join(names[:SHOWN])}{more}: {why}")
    return lines

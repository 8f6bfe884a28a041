"""Shared by the tests of the product: small models that learn in a second, on a small network."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from helpers.small_datasets import small_dataset

QUICK = {
    "method": "daf",
    "epochs": 2,
    "batch_size": 8,
    "align_epochs": 2,
    "align_samples": 16,
    "lr": 0.02,
}


def pictures(counts: dict[int, int], seed: int = 0) -> tuple[list[np.ndarray], list[str]]:
    """Return so many images of each numbered class, and their names."""
    dataset = small_dataset([max(1, counts.get(c, 0)) for c in range(max(counts) + 1)], seed=seed)
    found = [
        (pixels, f"class {label}")
        for pixels, label in zip(dataset.train.items, dataset.train.labels, strict=True)
        if label in counts
    ]
    return [pixels for pixels, _ in found], [name for _, name in found]


def create(path: Path, **settings: Any) -> Classifier:
    return Classifier.create(path, device="cpu", **settings)


def taught(path: Path, *lessons: dict[int, int], **settings: Any) -> Classifier:
    """A model that had these lessons: class -> number of images, each."""
    classifier = create(path, **settings)
    for number, counts in enumerate(lessons):
        classifier.learn(*pictures(counts, seed=number))
    return classifier


def write_folders(root: Path, counts: dict[int, int], seed: int = 0) -> Path:
    """The same images as class folders."""
    for number, (pixels, name) in enumerate(zip(*pictures(counts, seed), strict=True)):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name / f"{number:03d}.png")
    return root


def files(path: Path) -> dict[str, bytes]:
    """Everything in a folder but its lock."""
    found = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock"]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}


def needed(folder: ModelFolder) -> set[str]:
    """The objects that there must be: older versions go without what can be solved again."""
    *older, current = folder.history()
    return current.objects.union(*(version.lasting for version in older))

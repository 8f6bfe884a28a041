"""Small data sets whose classes are told apart at a glance."""

from pathlib import Path

import numpy as np

from dafuse.data.arrays import arrays
from dafuse.data.dataset import Dataset


def small_dataset(counts: list[int], test_count: int = 4, seed: int = 0) -> Dataset:
    """Classes told apart by colour and a bar's place; ``counts`` training images of each."""
    rng = np.random.default_rng(seed)

    def images(label: int, count: int) -> np.ndarray:
        base = np.random.default_rng(1000 + label).integers(0, 256, 3)
        out = np.clip(base + rng.normal(0, 40, (count, 24, 24, 3)), 0, 255)
        out[:, label % 24] = 255 - base
        return out.astype(np.uint8)

    def split(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        pixels = np.concatenate([images(label, count) for label, count in enumerate(counts)])
        return pixels, np.repeat(np.arange(len(counts)), counts)

    test = split([test_count] * len(counts))
    classes = [f"class {i}" for i in range(len(counts))]
    return arrays(*split(counts), *test, classes=classes, name="small")


def save_arrays(dataset: Dataset, file: Path) -> None:
    """Save a data set as the .npz file that `--data` takes."""
    np.savez(
        file,
        train_images=dataset.train.items,
        train_labels=dataset.train.labels,
        test_images=dataset.test.items,
        test_labels=dataset.test.labels,
    )

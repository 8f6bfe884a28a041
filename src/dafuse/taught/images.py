"""A lesson's images for methods that train: read by torch, some kept back to test with."""

import numpy as np

from dafuse.data.batches import Loader
from dafuse.data.dataset import Augmentation, Dataset, ImageSet
from dafuse.data.splits import split_per_class
from dafuse.errors import DafuseError
from dafuse.taught.contract import Lesson
from dafuse.taught.torch_eye import TorchExtractor

HELD_OUT = 0.1  # share of the images of a class
HOLDS_OUT = 5  # images that a class must have for some of them to be held out


def load_images(lesson: Lesson, eye: TorchExtractor, flip: bool) -> tuple[Loader, ImageSet]:
    """What batches come from, and the lesson's images with the numbers of their classes.

    Known classes that are not in the lesson are not asked for.
    """
    present_K, labels_N = np.unique(lesson.labels_N, return_inverse=True)
    images = ImageSet(lesson.images, labels_N)
    nothing = images.take(np.zeros(0, dtype=np.int64))
    augmentation = Augmentation() if flip else Augmentation(flip=0.0)
    names = [lesson.names[number] for number in present_K]
    dataset = Dataset("lesson", names, images, nothing, augmentation)
    loader = Loader(dataset, eye.preprocessing, eye.fabric.device, lesson.progress)
    return loader, images.relabel(present_K)


def held_out(images: ImageSet, names: list[str], share: float, seed: int) -> np.ndarray:
    """A mask: this share of each class of 5 images or more, and at least one of it."""
    if not 0 <= share < 1:
        raise DafuseError(f"holdout must be at least 0 and below 1, not {share}")
    drawn_N = split_per_class(images.labels, names, share, seed)
    return drawn_N & (np.bincount(images.labels)[images.labels] >= HOLDS_OUT)

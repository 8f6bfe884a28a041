"""Exemplars: the images that a rehearsal method keeps of the classes it has learned."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet

NOTHING = np.zeros(0, dtype=np.int64)  # index and labels of no images


class ExemplarMemory:
    """Training images kept, by reference to the source they come from."""

    def __init__(self, nothing: ImageSet) -> None:
        self.images = nothing

    def add(self, images: ImageSet) -> None:
        self.images = ImageSet.join([self.images, images])

    def joined(self, images: ImageSet) -> ImageSet:
        """Return these images and those kept, to train on together."""
        return ImageSet.join([images, self.images])

    def tensors(self) -> dict[str, Tensor]:
        """Return what must be saved: which images, and their labels."""
        index, labels = self.images.index, self.images.labels
        return {"index": torch.from_numpy(index.copy()), "labels": torch.from_numpy(labels.copy())}

    def set(self, tensors: dict[str, Tensor]) -> None:
        index, labels = tensors["index"].cpu().numpy(), tensors["labels"].cpu().numpy()
        self.images = ImageSet(self.images.items, labels, index)


def herded(images: ImageSet, feats_ND: Tensor, per_class: int) -> ImageSet:
    """Return the images of each class whose mean feature follows the class mean best (iCaRL).

    A class with fewer images gives all it has.
    """
    chosen = []
    for label in np.unique(images.labels):
        rows = np.flatnonzero(images.labels == label)
        chosen.append(rows[herd(feats_ND[torch.from_numpy(rows)], per_class).cpu().numpy()])
    return images.take(np.concatenate(chosen))


def herd(feats_ND: Tensor, count: int) -> Tensor:
    """Positions of up to ``count`` features, in the order in which they are picked.

    Greedily, each is the one that brings the mean of the picked nearest to the mean of all;
    features are taken at length 1.
    """
    exact = torch.float32 if feats_ND.device.type == "mps" else torch.float64
    units_ND = F.normalize(feats_ND.to(exact), dim=1)
    mean_D = units_ND.mean(0)
    total_D = torch.zeros_like(mean_D)
    free_N = torch.ones(len(units_ND), dtype=torch.bool, device=units_ND.device)
    picked = []
    for number in range(1, min(count, len(units_ND)) + 1):
        distance_N = (mean_D - (total_D + units_ND) / number).norm(dim=1)
        best = torch.where(free_N, distance_N, torch.inf).argmin()
        picked.append(best)
        free_N[best] = False
        total_D = total_D + units_ND[best]
    return torch.stack(picked)

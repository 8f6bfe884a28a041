"""DAF for what people teach: any number of classes, known ones again, classes of few images."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.errors import DafuseError
from dafuse.heads.gaussians import ENOUGH, Sampler
from dafuse.methods.daf import DAF

# Of the deviations of a class of one image, less for more and nothing from ENOUGH on. On CIFAR-100
# with the embedded backbone (docs/product.md): more costs the classes of many images confidence.
FEW_WIDENING = 4.0


@dataclass(kw_only=True, eq=False)
class LessonsOfDAF(DAF):
    """Taught two new classes or more, each of enough images, it does what `DAF` does.

    It also knows how many images each class was learned from: more images of a known class are
    weighed against them, and a class of few borrows its covariance.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stats_adapter != "global":
            raise DafuseError("a model that is taught needs the option stats_adapter=global")
        if self.head != "aligned":
            raise DafuseError("a model that is taught needs the option head=aligned")
        self.images: list[int] = []  # of each class

    def teach(self, task: Task, more: ImageSet) -> None:
        """Learn the task's new classes, and ``more`` of known ones.

        With one new class there is nothing to tell apart, so no adapter is trained: the class is
        measured under the global adapter as it is.
        """
        if len(more):
            self._measure_more(more)
        counts = np.bincount(task.train.labels - task.first, minlength=task.size)
        self.images += [int(count) for count in counts]
        if task.size > 1:
            self.learn(task)
        elif task.size == 1:
            self.extend_classifier(task)
        else:
            self.align(task)

    def trains(self, task: Task) -> bool:
        """Whether this task makes an adapter."""
        return task.size > 1

    def sampler(self) -> Sampler:
        """What the rows are aligned with: as `measured`, wider for classes of few images.

        The mean of few images is not the mean of the class. Drawn as narrowly about it as they
        were measured, such a class would leave most of what it looks like to classes of many
        images, which would be sure of it. Where all are of as few, none gives way to another.
        """
        counts_C = torch.tensor(self.images, device=self.trainer.device, dtype=torch.float32)
        borrowed_C = (1 - (counts_C - 1) / (ENOUGH - 1)).clamp(min=0)
        wider_C = 1 + FEW_WIDENING * borrowed_C / counts_C.sqrt()
        return self.measured().widened(wider_C / wider_C.min())

    def measured(self) -> Sampler:
        """The classes as their images were, where few of them borrow covariance."""
        return self.classes.borrowing(self.images).sampler(self.trainer.device)

    def _measure_more(self, more: ImageSet) -> None:
        """Means and covariances of known classes become those of all their images."""
        feats_ND, labels_N = self.trainer.features(more, self.global_adapter)
        self.rows_CD = self.rows_CD.clone()
        for row in np.unique(more.labels).tolist():
            of_class = feats_ND[labels_N == row]
            self.classes.merge(of_class, row, self.images[row])
            self.images[row] += len(of_class)
            self.rows_CD[row] = F.normalize(self.classes.tensors["mean"][row].float(), dim=0)

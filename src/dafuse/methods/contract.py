"""What the engine may ask of a method, and what a method may ask of the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from dafuse.backbones.attach import Attachment
from dafuse.backbones.backbone import Need
from dafuse.backbones.depths import Depths
from dafuse.backbones.network import Network
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.errors import DafuseError
from dafuse.methods.options import check_choices, check_ranges
from dafuse.methods.schedule import Group, Schedule
from dafuse.progress import Bar

Loss = Callable[[Tensor, Tensor], Tensor]  # images [B, 3, S, S], labels [B] -> scalar
# what a method with the option `tune` needs
NEEDS_OF_TUNING: dict[str, Need] = {
    "none": "features",
    "first": "adapters",
    "each": "adapters",
    "adapter": "adapters",
    "full": "whole network",
}
Batches = Iterator[tuple[Tensor, Tensor]]  # images [B, 3, S, S], labels [B]


class Trainer(Protocol):
    """The engine's side: it knows devices, precision, batches and progress; methods need not."""

    network: Network
    device: torch.device
    seed: int
    gradient_batch: int  # images whose backward pass fits into the device's memory, not only just

    @property
    def records(self) -> bool:
        """Whether what `recorded` computes is kept for other runs."""

    def fit(
        self,
        task: Task,
        attached: Attachment | None,
        loss: Loss,
        groups: Sequence[Group],
        schedule: Schedule,
        *,
        images: ImageSet | None = None,
        after_step: Callable[[], None] | None = None,
        epochs_before: int = 0,
    ) -> None:
        """Minimise the loss over augmented images: the task's, unless others are given.

        The attachment is in training mode meanwhile. A second training within one task says how
        many epochs were before it, so that it sees other crops. On a GPU a step is recorded and
        replayed: what the loss and `after_step` do in Python is done a few times only.
        """

    def encode(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
    ) -> Tensor:
        """Features [B, ...] as float32, computed in the run's precision.

        Args:
            images_B3SS: already on the device
            attached: what joins the network
            network: default: the frozen one; or another, which the method trains whole
            depths: which blocks are read (`backbones.depths`)
        """

    def features(
        self,
        images: ImageSet,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
    ) -> tuple[Tensor, Tensor]:
        """Features [N, ...] and labels [N] under the test transform, without gradient."""

    def test_batches(self, images: ImageSet, batch_size: int | None = None) -> Batches:
        """The images in order, under the test transform; the batch size is the engine's choice."""

    def batches_of(self, size: int) -> AbstractContextManager[None]:
        """Says how large batches will be, so that what is compiled serves the last one too."""

    def recorded(
        self, name: str, task: Task, compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """What was recorded of this task under this name, or else what is computed."""

    def graphed(self, work: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
        """The same work on batches, on a GPU as a CUDA graph that is recorded and replayed.

        What it uses beside the batch must stay where it is; its values may change.
        """

    def autocast(self) -> AbstractContextManager[None]:
        """The run's precision, for what a method computes beside `encode`."""

    def kept_images(self, index: np.ndarray, labels: np.ndarray) -> ImageSet:
        """Training images by their index, for a method that keeps some."""

    def pixel_bytes(self, images: ImageSet) -> int:
        """What these images take, decoded."""

    def phase(self, name: str, images: int = 0, steps: int = 0) -> AbstractContextManager[Bar]:
        """Times a part of learning and shows its progress."""


@dataclass(kw_only=True, eq=False)
class Method(ABC):
    """A way to learn a stream. Construct it, then `learn` each task in turn.

    A method that `observes` learns a stream without tasks, too: `observe` each of its batches.

    Hyper-parameters are the fields of the class: they are the command line and the recipe's
    schema. Inference is pure: `logits` changes nothing, and what it says of an image
    does not depend on the other images of the batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `dafuse list methods`
    paper: ClassVar[str] = ""
    keeps: ClassVar[str]  # between tasks, in words
    keeps_images: ClassVar[bool] = False
    passes: ClassVar[str] = "1"  # through the network for a prediction after task t: "1", "t + 1"
    needs: ClassVar[Need] = "features"  # of a network, where no option says otherwise
    trains_once: ClassVar[bool] = False  # in the first task alone; then it measures features
    observes: ClassVar[bool] = False  # any batch at any time: it learns streams without tasks
    assumes: ClassVar[str] = "nothing about the future"
    # options that training does not depend on, of a method whose training can be `recorded`
    after_training: ClassVar[frozenset[str]] = frozenset()

    trainer: Trainer

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)

    @abstractmethod
    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task's classes from its training images; returns a diagnosis to record."""

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Learn from a batch of any size, known and new classes mixed; it does not come again.

        Images are on the device, under the test transform. Labels count classes by their first
        appearance in the stream: after the batch, those seen are 0 .. k - 1. So are they after
        each of the batches before, and `logits` scores them all.
        """
        raise TypeError(f"{type(self).__name__} learns task by task: it does not observe batches")

    @classmethod
    def needs_tasks(cls, options: dict[str, Any]) -> str:
        """Why the method cannot observe, with these options, in words; nothing where it can."""
        return "" if cls.observes else "learns task by task"

    @classmethod
    def needs_of(cls, options: dict[str, Any]) -> Need:
        """What it needs of a network with these options."""
        return NEEDS_OF_TUNING.get(options.get("tune", getattr(cls, "tune", "")), cls.needs)

    @abstractmethod
    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Scores [B, seen classes] of images already on the device."""

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        """Scores by each way to predict that is worth recording; that of `logits` comes first."""
        return {"": self.logits(images_B3SS)}

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that must persist between tasks, and nothing else.

        What was observed may be rounded to the precision it is kept in: a run asks for the state
        at every point of evaluation, whether it is stopped there or not.
        """

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become what `state` was taken from; its tensors are on the trainer's device."""

    @property
    def least_classes(self) -> int:
        """How many classes a task must have for anything to be learned from it."""
        return 1

    def require_learnable(self, sizes: Sequence[int]) -> None:
        """Refuse tasks of too few classes, before any of them is trained."""
        few = [number for number, size in enumerate(sizes, 1) if size < self.least_classes]
        if few:
            raise DafuseError(
                f"{self.name} learns nothing from a task of one class, which task {few[0]} of "
                f"{len(sizes)} is: its loss only tells a task's own classes apart. "
                "Choose another --increment or another method"
            )

    @property
    def passes_per_prediction(self) -> int:
        """How many times an image goes through the network to be classified, by now."""
        return int(self.passes)

    def kept_bytes(self) -> dict[str, int]:
        """Bytes that persist between tasks by kind: the part of a state's name before the slash.

        Of kept images the state holds the index; their decoded pixels are what is counted.
        """
        kept: dict[str, int] = {}
        for key, tensor in self.state().items():
            kind = key.partition("/")[0]
            kept[kind] = kept.get(kind, 0) + tensor.numel() * tensor.element_size()
        if self.keeps_images:
            kept["exemplars"] += self.trainer.pixel_bytes(self.exemplars())
        return kept

    def exemplars(self) -> ImageSet:
        """The images kept, of a method that keeps images."""
        raise TypeError(f"{type(self).__name__} has to say which images it keeps: exemplars()")

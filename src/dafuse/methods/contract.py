"""What the engine may ask of a method, and what a method may ask of the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.methods.options import check_choices
from dafuse.progress import Bar
from dafuse.vit.attach import Attachment
from dafuse.vit.backbone import FrozenViT

Loss = Callable[[Tensor, Tensor], Tensor]  # features [B, D], labels [B] -> scalar
Batches = Iterator[tuple[Tensor, Tensor]]  # images [B, 3, S, S], labels [B]


@dataclass(frozen=True)
class Schedule:
    """How a task is trained."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float


class Trainer(Protocol):
    """The engine's side: it knows devices, precision, batches and progress; methods need not."""

    vit: FrozenViT
    device: torch.device
    seed: int

    def fit(
        self,
        task: Task,
        attached: Attachment,
        loss: Loss,
        parameters: Iterable[nn.Parameter],
        schedule: Schedule,
    ) -> None:
        """SGD over the task's augmented images, the rate falling to zero along a cosine."""

    def encode(self, images_B3SS: Tensor, attached: Attachment | None) -> Tensor:
        """Features [B, D] as float32, computed in the run's precision."""

    def features(self, images: ImageSet, attached: Attachment | None) -> tuple[Tensor, Tensor]:
        """Features [N, D] and labels [N] under the test transform, without gradient."""

    def test_batches(self, images: ImageSet, batch_size: int | None = None) -> Batches:
        """The images in order, under the test transform; the batch size is the engine's choice."""

    def phase(self, name: str, images: int = 0, steps: int = 0) -> AbstractContextManager[Bar]:
        """Times a part of learning and shows its progress."""


@dataclass(kw_only=True, eq=False)
class Method(ABC):
    """A way to learn a stream of tasks. Construct it, then `learn` each task in turn.

    Hyper-parameters are the fields of the class: they are the command line and the recipe's
    schema. Inference is pure: `logits` changes nothing, and what it says of an image
    does not depend on the other images of the batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `dafuse list methods`
    paper: ClassVar[str] = ""
    keeps_images: ClassVar[bool] = False
    assumes: ClassVar[str] = "nothing about the future"

    trainer: Trainer

    def __post_init__(self) -> None:
        check_choices(self)

    @abstractmethod
    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task's classes from its training images; returns a diagnosis to record."""

    @abstractmethod
    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Scores [B, seen classes] of images already on the device."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that must persist between tasks, and nothing else."""

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become what `state` was taken from."""

    @property
    def passes_per_prediction(self) -> int:
        """How many times an image goes through the network to be classified."""
        return 1

    def kept_bytes(self) -> dict[str, int]:
        """Bytes that persist between tasks by kind: the part of a state's name before the slash."""
        kept: dict[str, int] = {}
        for key, tensor in self.state().items():
            kind = key.partition("/")[0]
            kept[kind] = kept.get(kind, 0) + tensor.numel() * tensor.element_size()
        return kept

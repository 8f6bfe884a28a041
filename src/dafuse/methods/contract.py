"""The contract between methods and the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
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
from dafuse.methods.options import Options, require_valid
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


class Engine(Protocol):
    """The engine's side, for methods: devices, precision, batches and progress."""

    network: Network
    device: torch.device
    seed: int

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
        """Minimise the loss over augmented images, by default the task's.

        The attachment is in training mode meanwhile. A second training within one task gives the
        number of epochs before it, so that its crops differ. On a GPU a step is captured once and
        launched again: the Python code of the loss and of `after_step` runs only a few times.
        """

    def encode(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, ...] as float32, computed in the run's precision.

        Args:
            images_B3SS: images on the device
            attached: the modules that attach to the network
            network: the network, by default the frozen one; methods may train another one whole
            depths: the blocks to read (`backbones.depths`)
            prompts: prompts [B, ...] of the images, for an attachment that takes them
        """

    def features(
        self,
        images: ImageSet,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
    ) -> tuple[Tensor, Tensor]:
        """Return features [N, ...] and labels [N] under the test transform, without gradient."""

    def dealt(
        self, images: ImageSet, bar: Bar, size: int | None = None, gradients: bool = False
    ) -> Batches:
        """Yield batches in order under the test transform; several processes deal them out.

        The engine sets the size by default; with ``gradients`` it is one whose backward pass fits
        in memory with a margin. It advances the bar. Sums over them are added up by `summed`.
        """

    def summed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of these tensors over all processes; one may have none."""

    def whole_batch(self, part_B: Tensor) -> Tensor:
        """Return the rows of all images of a training batch, of which several processes have parts.

        For a loss that compares images with each other. Elsewhere a loss is a mean over images,
        beside terms that depend on none.
        """

    def graphed(self, work: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
        """Return the same work on batches; on a GPU, as a CUDA graph that is captured once.

        Tensors that the work uses beside the batch must stay in place; their values may change.
        """

    def autocast(self) -> AbstractContextManager[None]:
        """Return the run's precision, for computations beside `encode`."""

    def kept_images(self, index: np.ndarray, labels: np.ndarray) -> ImageSet:
        """Return training images by their index, for a method that keeps images."""

    def phase(self, name: str, images: int = 0, steps: int = 0) -> AbstractContextManager[Bar]:
        """Time a part of learning and show its progress."""


@dataclass(kw_only=True, eq=False)
class Method(ABC):
    """A way to learn a stream: construct it, then `learn` each task in turn.

    A method that `observes` also learns streams without tasks: `observe` each batch.

    Hyper-parameters are the fields of the class; the command line and recipes take them from there.
    Inference is pure: `logits` changes nothing, and the scores of an image do not depend on the
    other images of the batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `dafuse list methods`
    paper: ClassVar[str] = ""
    keeps: ClassVar[str]  # what persists between tasks, in words
    keeps_images: ClassVar[bool] = False
    grows: ClassVar[bool] = False  # keeps modules of each task
    needs: ClassVar[Need] = "features"  # what it needs of a network; an option may change it
    trains_once: ClassVar[bool] = False  # in the first task; later ones only measure features
    observes: ClassVar[bool] = False  # learns from any batch at any time: streams without tasks
    assumes: ClassVar[str] = "nothing about the future"
    # options that do not change training, for a method with `recorded_steps`
    after_training: ClassVar[frozenset[str]] = frozenset()

    trainer: Engine

    def __post_init__(self) -> None:
        named = [field.name for field in fields(self) if field.name != "trainer"]
        self.validate({name: getattr(self, name) for name in named})

    @classmethod
    def validate(cls, options: Options) -> None:
        """Refuse options, all of them given, of which no method can be made."""
        require_valid(cls, options, "method.")

    @abstractmethod
    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task's classes from its training images; return a diagnosis to record."""

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Learn from a batch of any size with known and new classes; it does not come again.

        Images are on the device, under the test transform. Labels number classes by their first
        appearance in the stream, so after each batch the seen classes are 0 .. k - 1, and `logits`
        scores them all.
        """
        raise TypeError(f"{type(self).__name__} learns task by task: it does not observe batches")

    @classmethod
    def needs_tasks(cls, options: Options) -> str:
        """Say why the method cannot observe with these options; empty if it can."""
        return "" if cls.observes else "learns task by task"

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        """Return the number of forward passes that classify an image after task t."""
        return 1

    @classmethod
    def epochs_of(cls, number: int, options: Options) -> int:
        """Return the training epochs of a task, with work that costs as much as some."""
        if options.get("tune") == "none" or (cls.trains_once and number > 1):
            return 0
        epochs = options.get("epochs", 0)
        return options.get("first_epochs", epochs) if number == 1 else epochs

    @classmethod
    def needs_of(cls, options: Options) -> Need:
        """Return what the method needs of a network with these options."""
        return NEEDS_OF_TUNING.get(options.get("tune", getattr(cls, "tune", "")), cls.needs)

    @abstractmethod
    def logits(self, images_B3SS: Tensor) -> Tensor:
        """Return scores [B, seen classes] of images on the device."""

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        """Return the scores of each way to predict worth recording, that of `logits` first."""
        return {"": self.logits(images_B3SS)}

    def recorded_steps(self) -> dict[str, str]:
        """Name the steps whose results a run with --record keeps: the method, and its file.

        A step takes the task first, and returns tensors. A run with --replay that trains the same
        gets them from the record instead. `after_training` says what else may differ then.
        """
        return {}

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return everything that must persist between tasks, and nothing else.

        Sums may be rounded to the precision in which they are stored: a run asks for the state at
        every evaluation, whether it stops there or not.
        """

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`; its tensors are on the trainer's device."""

    @property
    def least_classes(self) -> int:
        """The number of classes that a task needs for anything to be learned from it."""
        return 1

    def require_learnable(self, sizes: Sequence[int]) -> None:
        """Refuse tasks of too few classes, before training starts."""
        few = [number for number, size in enumerate(sizes, 1) if size < self.least_classes]
        if few:
            raise DafuseError(
                f"{self.name} needs at least two classes in each task, but task {few[0]} of "
                f"{len(sizes)} has one: its loss only tells a task's own classes apart. "
                "Choose another --increment or another method"
            )

    def kept_bytes(self) -> dict[str, int]:
        """Count the bytes that persist between tasks, by kind: the state's prefix before the slash.

        Kept images are only an index in the state; the engine counts their pixels.
        """
        kept: dict[str, int] = {}
        for key, tensor in self.state().items():
            kind = key.partition("/")[0]
            kept[kind] = kept.get(kind, 0) + tensor.numel() * tensor.element_size()
        return kept

    def exemplars(self) -> ImageSet:
        """Return the kept images, for a method that keeps images."""
        raise TypeError(f"{type(self).__name__} keeps images and must define exemplars()")


def prefixed(prefix: str, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return a group of a state, named ``prefix.name``, such as "modules/global.down.weight"."""
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in (tensors or {}).items()}


def unprefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the group of a state with this prefix by its own names; empty if there is none."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): tensor for key, tensor in state.items() if key.startswith(start)
    }

"""DAF as people teach it: each lesson trains an adapter and fuses it. Needs torch.

Some images of each class are held out, since a method that trains can be tested in no other way;
they also set the temperature. All classes share one adapter, so a dropped class leaves its trace
there.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, adapter_beside
from dafuse.backbones.backbone import Backbone, Need
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task, of_classes
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.heads.cosine import SCALE, cosine_logits
from dafuse.heads.gaussians import ENOUGH, Sampler
from dafuse.heads.head import Head
from dafuse.methods.contract import unprefixed
from dafuse.methods.daf import DAF
from dafuse.methods.registry import checked_options
from dafuse.seeds import derive
from dafuse.taught import words
from dafuse.taught.contract import (
    CLASS,
    PREDICT,
    SHARED,
    Arrays,
    Encode,
    Lesson,
    LessonOptions,
    Numbers,
    Tested,
    named,
    under,
)
from dafuse.taught.daf_calibration import LEAST, Calibration, find_threshold, with_held_out
from dafuse.taught.several_devices import share_lesson
from dafuse.taught.torch_extractor import HELD_OUT, TorchExtractor, held_out, load_images

if TYPE_CHECKING:
    from onnx import ModelProto

STATISTICS, ROWS = "statistics/class.", "classifier/rows"  # names in the method's own state
# How much wider than measured a class of one image is drawn; less for more images, nothing from
# ENOUGH on. On CIFAR-100 with the embedded backbone (docs/product.md), a larger factor costs the
# classes of many images confidence.
FEW_WIDENING = 4.0


@dataclass(kw_only=True, eq=False)
class LessonsOfDAF(DAF):
    """DAF for any number of new classes, known ones again, and classes of few images.

    For two new classes or more with enough images each, it does what `DAF` does. It also knows the
    number of images behind each class: more images of a known class are weighed against them, and a
    class of few images borrows covariance.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stats_adapter != "global":
            raise DafuseError("a model that is taught needs the option stats_adapter=global")
        if self.head != "aligned":
            raise DafuseError("a model that is taught needs the option head=aligned")
        self.images: list[int] = []  # number for each class

    def teach(self, task: Task, more: ImageSet) -> None:
        """Learn the task's new classes, and ``more`` images of known ones.

        One new class alone cannot train an adapter: it is measured under the current global
        adapter.
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
        """Tell whether this task trains an adapter."""
        return task.size > 1

    def sampler(self) -> Sampler:
        """Return the Gaussians for alignment: as `measured`, wider for classes of few images.

        The mean of few images is not the mean of the class. Drawn as narrowly as measured, such a
        class would lose most of its unseen images to classes of many, with high confidence. If all
        classes have equally few images, nothing is widened.
        """
        counts_C = torch.tensor(self.images, device=self.trainer.device, dtype=torch.float32)
        borrowed_C = (1 - (counts_C - 1) / (ENOUGH - 1)).clamp(min=0)
        wider_C = 1 + FEW_WIDENING * borrowed_C / counts_C.sqrt()
        return self.measured().widened(wider_C / wider_C.min())

    def measured(self) -> Sampler:
        """Return the measured Gaussians; classes of few images borrow covariance."""
        return self.classes.borrowing(self.images).sampler(self.trainer.device)

    def _measure_more(self, more: ImageSet) -> None:
        """Update means and covariances of known classes to those of all their images."""
        feats_ND, labels_N = self.trainer.features(more, self.global_adapter)
        self.weights_CD = self.weights_CD.clone()
        for row in np.unique(more.labels).tolist():
            of_class = feats_ND[labels_N == row]
            self.classes.merge(of_class, row, self.images[row])
            self.images[row] += len(of_class)
            self.weights_CD[row] = F.normalize(self.classes.tensors["mean"][row].float(), dim=0)


@dataclass(frozen=True)
class _Split:
    """The parts of a lesson as DAF learns it."""

    task: Task  # the new classes
    more: ImageSet  # images of known classes
    held_out: ImageSet  # of new and known classes


class TaughtDAF:
    """One fused adapter, and for each class a prototype and a Gaussian."""

    trains: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = True
    encoder_reads_shared: ClassVar[bool] = True
    remains: ClassVar[str] = words.DAF.remains

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None:
        assert isinstance(extractor, TorchExtractor)
        self.extractor, self.settings, self.seed = extractor, settings, seed
        self.state: dict[str, Tensor] = {}  # the method's state after a lesson
        self.tasks, self.calibration, self.threshold = 0, Calibration(), LEAST

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        return checked_options("daf", {"memory_dtype": "float16", **given})

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        return "adapters"

    @classmethod
    def takes(cls, settings: dict[str, Any]) -> Collection[str]:
        return LessonOptions.__annotations__

    def learn(self, lesson: Lesson) -> Tested:
        """Learn a lesson; its options are holdout, flip, epochs, lr."""
        options = {name: value for name, value in lesson.options.items() if value is not None}
        holdout, flip = options.pop("holdout", HELD_OUT), options.pop("flip", True)
        share_lesson(self, lesson)
        loader, images = load_images(lesson, self.extractor, flip)
        split = self._split(lesson, images, holdout)
        trainer = Trainer(
            self.extractor.network, loader, self.extractor.fabric, self.seed, lesson.progress
        )
        method = LessonsOfDAF(trainer=trainer, **{**self.settings, **options})
        if lesson.known:
            method.load_state({name: one.to(trainer.device) for name, one in self.state.items()})
            method.images = list(lesson.counts_C[: lesson.known])
        method.teach(split.task, split.more)
        tested, logits_NC = self._tested(split.held_out, method, trainer)
        labels_N = torch.from_numpy(tested.labels_N)
        self.calibration = with_held_out(self.calibration, logits_NC, labels_N)
        seed = derive(self.seed, "estimate", self.tasks)
        generator = torch.Generator(trainer.device).manual_seed(seed)
        self.threshold = find_threshold(
            method.measured(), method.images, method.weights_CD, generator
        )
        self.tasks += 1 if method.trains(split.task) else 0
        self.state = {name: one.detach().cpu() for name, one in method.state().items()}
        return tested

    def drop(self, remaining: Sequence[int]) -> None:
        for name, tensor in self.state.items():
            if name == ROWS or name.startswith(STATISTICS):
                self.state[name] = tensor[list(remaining)]

    def merge(self, other: "TaughtDAF", numbers: Sequence[int]) -> None:
        raise DafuseError("models taught by daf cannot be merged: each has an adapter of its own")

    def encoder(self, shared: Arrays) -> Encode:
        adapter = self._adapter(shared).to(self.extractor.fabric.device)
        return lambda squares_B3SS: self.extractor.encode(squares_B3SS, "last", adapter)

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.extractor.graph("last", self._adapter(shared))

    def head(self) -> Head:
        weights_CD = self.state[ROWS].numpy()
        return Head(
            weights_CD,
            np.zeros(len(weights_CD), np.float32),
            cosine=True,
            sharpness=SCALE * self.calibration.sharpness,
            energy=SCALE,
            threshold=self.threshold,
        )

    def arrays(self) -> Arrays:
        state = {name: tensor.numpy() for name, tensor in self.state.items()}
        modules = {name: array for name, array in state.items() if name.startswith("modules/")}
        return {
            **named(CLASS, under(STATISTICS, state)),
            **named(SHARED, modules),
            **named(PREDICT, self.head().arrays()),
        }

    def numbers(self) -> Numbers:
        return {
            "tasks": float(self.tasks),
            "held_out": float(self.calibration.images),
            "precision": self.calibration.precision,
            **self.head().numbers(),
        }

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        state = {
            **named(STATISTICS, under(CLASS, arrays)),
            **under(SHARED, arrays),
            ROWS: arrays[PREDICT + "weights"],
        }
        # copies, since memory of a file may be read-only
        self.state = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
        self.tasks, self.threshold = int(numbers["tasks"]), numbers["threshold"]
        self.calibration = Calibration(
            int(numbers["held_out"]), numbers["sharpness"] / SCALE, numbers["precision"]
        )

    def _adapter(self, shared: Arrays) -> Adapter:
        """Return the global adapter, which predicts."""
        rank, scale = self.settings["adapter_rank"], self.settings["adapter_scale"]
        adapter = adapter_beside(self.extractor.network.stages, rank, scale)
        arrays = under(SHARED, shared)
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return adapter.set(unprefixed(tensors, "modules/global")).requires_grad_(False).eval()

    def _split(self, lesson: Lesson, images: ImageSet, holdout: float) -> _Split:
        known, new = lesson.known, lesson.names[lesson.known :]
        is_held_out = held_out(images, lesson.names, holdout, self.seed)
        learned, tested = images.take(~is_held_out), images.take(is_held_out)
        train = of_classes(learned, known, len(new))
        nothing = learned.take(np.zeros(0, dtype=np.int64))
        return _Split(
            Task(self.tasks, known, len(new), new, train, nothing),
            more=of_classes(learned, 0, known),
            held_out=of_classes(tested, 0, len(lesson.names)),
        )

    def _tested(
        self, held_out: ImageSet, method: LessonsOfDAF, trainer: Trainer
    ) -> tuple[Tested, Tensor]:
        """Return the answers for the held-out images, and their logits; there may be none."""
        if not len(held_out):
            nothing = np.zeros(0, dtype=np.int64)
            return Tested("held out", nothing, nothing), torch.zeros(0, len(method.weights_CD))
        feats_ND, labels_N = trainer.features(held_out, method.global_adapter)
        logits_NC = cosine_logits(feats_ND, method.weights_CD).cpu()
        return Tested("held out", labels_N.cpu().numpy(), logits_NC.argmax(1).numpy()), logits_NC

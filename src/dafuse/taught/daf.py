"""DAF as people teach it: an adapter is trained in each lesson and fused; it needs torch.

Some images of each class are held out, since training leaves no other way to see how well the
classes do: they set the temperature, too. The adapter is of all classes together: a class that is
dropped has had its part in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task, of_classes
from dafuse.engine.training import Trainer
from dafuse.errors import DafuseError
from dafuse.heads.cosine import SCALE, cosine_logits
from dafuse.heads.head import Head
from dafuse.methods.packing import unpacked
from dafuse.methods.registry import checked_options
from dafuse.seeds import derive
from dafuse.taught import words
from dafuse.taught.calibration import Calibration, with_held_out
from dafuse.taught.contract import (
    CLASS,
    PREDICT,
    SHARED,
    Arrays,
    Encode,
    Lesson,
    Numbers,
    Tested,
    named,
    under,
)
from dafuse.taught.images import HELD_OUT, held_out, load_images
from dafuse.taught.lessons_of_daf import LessonsOfDAF
from dafuse.taught.torch_eye import TorchExtractor
from dafuse.taught.unfamiliar import LEAST, find_threshold
from dafuse.vit.adapter import Adapter
from dafuse.vit.extractor import Extractor

if TYPE_CHECKING:
    from onnx import ModelProto

STATISTICS, ROWS = "statistics/class.", "classifier/rows"  # names in the method's own state


@dataclass(frozen=True)
class _Split:
    """A lesson as DAF learns it."""

    task: Task  # the new classes
    more: ImageSet  # of known classes
    held_out: ImageSet  # of both


class TaughtDAF:
    """One fused adapter, a prototype and a Gaussian of each class."""

    trains: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = True
    remains: ClassVar[str] = words.DAF.remains

    def __init__(self, eye: Extractor, settings: dict[str, Any], seed: int) -> None:
        assert isinstance(eye, TorchExtractor)
        self.eye, self.settings, self.seed = eye, settings, seed
        self.state: dict[str, Tensor] = {}  # of the method, after a lesson
        self.tasks, self.calibration, self.threshold = 0, Calibration(), LEAST

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        return checked_options("daf", {"memory_dtype": "float16", **given})

    def learn(self, lesson: Lesson) -> Tested:
        """Options of a lesson: holdout, flip, epochs, lr."""
        given = {name: value for name, value in lesson.options.items() if value is not None}
        holdout, flip = given.pop("holdout", HELD_OUT), given.pop("flip", True)
        loader, images = load_images(lesson, self.eye, flip)
        split = self._split(lesson, images, holdout)
        trainer = Trainer(self.eye.vit, loader, self.eye.fabric, self.seed, lesson.progress)
        method = LessonsOfDAF(trainer=trainer, **{**self.settings, **given})
        if lesson.known:
            method.load_state({name: one.to(trainer.device) for name, one in self.state.items()})
            method.images = list(lesson.counts_C[: lesson.known])
        method.teach(split.task, split.more)
        tested, logits_NC = self._tested(split.held_out, method, trainer)
        labels_N = torch.from_numpy(tested.labels_N)
        self.calibration = with_held_out(self.calibration, logits_NC, labels_N)
        seed = derive(self.seed, "estimate", self.tasks)
        generator = torch.Generator(trainer.device).manual_seed(seed)
        self.threshold = find_threshold(method.measured(), method.images, method.rows_CD, generator)
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
        adapter = self._adapter(shared).to(self.eye.fabric.device)
        return lambda squares_B3SS: self.eye.encode(squares_B3SS, "last", adapter)

    def graph(self, shared: Arrays) -> "ModelProto":
        return self.eye.graph("last", self._adapter(shared))

    def head(self) -> Head:
        rows_CD = self.state[ROWS].numpy()
        return Head(
            rows_CD,
            np.zeros(len(rows_CD), np.float32),
            cosine=True,
            sharpness=SCALE * self.calibration.sharpness,
            energy=SCALE,
            threshold=self.threshold,
        )

    def arrays(self) -> Arrays:
        kept = {name: tensor.numpy() for name, tensor in self.state.items()}
        modules = {name: array for name, array in kept.items() if name.startswith("modules/")}
        return {
            **named(CLASS, under(STATISTICS, kept)),
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
        kept = {
            **named(STATISTICS, under(CLASS, arrays)),
            **under(SHARED, arrays),
            ROWS: arrays[PREDICT + "weights"],
        }
        # copies, for what a file gives may not be written to
        self.state = {name: torch.from_numpy(array.copy()) for name, array in kept.items()}
        self.tasks, self.threshold = int(numbers["tasks"]), numbers["threshold"]
        self.calibration = Calibration(
            int(numbers["held_out"]), numbers["sharpness"] / SCALE, numbers["precision"]
        )

    def _adapter(self, shared: Arrays) -> Adapter:
        """The global adapter, which predicts."""
        vit, settings = self.eye.vit, self.settings
        adapter = Adapter(vit.depth, vit.width, settings["adapter_rank"], settings["adapter_scale"])
        arrays = under(SHARED, shared)
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return adapter.set(unpacked(tensors, "modules/global")).requires_grad_(False).eval()

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
        """What the images held out are taken for, and their logits; there may be none."""
        if not len(held_out):
            nothing = np.zeros(0, dtype=np.int64)
            return Tested("held out", nothing, nothing), torch.zeros(0, len(method.rows_CD))
        feats_ND, labels_N = trainer.features(held_out, method.global_adapter)
        logits_NC = cosine_logits(feats_ND, method.rows_CD).cpu()
        return Tested("held out", labels_N.cpu().numpy(), logits_NC.argmax(1).numpy()), logits_NC

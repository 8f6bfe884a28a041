"""Closed-form methods as people teach them, by torch: sums over a network that may be tuned.

Each class wraps the method of a benchmark run and learns a lesson like a task. Sums add up, so any
lesson may bring known classes again. If a lesson trains an adapter, a tenth of its images is held
out of the training. These images are in the sums like all others, and are left out of them in turn
to test the classes and to set the temperature.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dafuse.backbones.backbone import Backbone, Need
from dafuse.backbones.network import Network
from dafuse.data.stream import Task, of_classes
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.heads.choice import evenly_chosen
from dafuse.heads.confidence import BEND, QuickTemperature, Threshold, geometric_mean, sharpness
from dafuse.heads.head import Head
from dafuse.methods.anacp import AnaCP
from dafuse.methods.klda import KLDA
from dafuse.methods.layup import LayUP
from dafuse.methods.lift import LIFT
from dafuse.methods.ranpac import RanPAC
from dafuse.methods.registry import checked_options
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
    under,
)
from dafuse.taught.several_devices import share_lesson
from dafuse.taught.torch_extractor import HELD_OUT, TorchExtractor, held_out, load_images

if TYPE_CHECKING:
    from onnx import ModelProto

# random columns; the 5,000 or 10,000 of benchmark runs take 50 to 400 MB in every version
COLUMNS = 2000
ENERGY = 20.0  # factor of the scores, in their unit, for the familiarity
MODULES, STATISTICS, CLASSIFIER = "modules/", "statistics/", "classifier/"  # prefixes in a state


@dataclass(frozen=True)
class _Still:
    """The trainer of a method that trains nothing."""

    network: Network
    device: torch.device
    seed: int


class TaughtSums:
    """A method of benchmark runs, with its state as arrays whose names say their first axis."""

    trains: ClassVar[bool] = True  # some train, and all of them read the images by torch
    needs_torch: ClassVar[bool] = True
    encoder_reads_shared: ClassVar[bool] = True
    remains: ClassVar[str]
    made_of: ClassVar[type[Any]]  # the method's class
    name: ClassVar[str]
    in_lessons: ClassVar[dict[str, Any]] = {}  # defaults that differ from those of benchmark runs
    records: ClassVar[tuple[str, ...]]  # patterns of statistics with an entry for each class
    weights: ClassVar[str] = "rows"  # the name of the class weights in the state
    leaves_out: ClassVar[bool] = True  # each image in turn; else holds some out
    draws: ClassVar[bool] = True  # has random columns, drawn by the seed
    tunes: ClassVar[str] = "none"  # when it trains an adapter, unless a setting says so

    def __init__(self, extractor: Backbone, settings: dict[str, Any], seed: int) -> None:
        assert isinstance(extractor, TorchExtractor)
        self.extractor, self.settings, self.seed = extractor, settings, seed
        self.state: dict[str, Tensor] = {}  # the method's state after a lesson
        self.tasks = 0  # lessons of two new classes or more, which can train an adapter
        self.unit, self.temperature, self.threshold = 1.0, QuickTemperature(), Threshold()

    @classmethod
    def defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        return checked_options(cls.name, {**cls.in_lessons, **given})

    @classmethod
    def needs(cls, settings: dict[str, Any]) -> Need:
        return cls.made_of.needs_of(settings)

    @classmethod
    def takes(cls, settings: dict[str, Any]) -> Collection[str]:
        if settings.get("tune", cls.tunes) != "none":
            return LessonOptions.__annotations__
        return ["flip"] if cls.leaves_out else ["flip", "holdout"]

    def learn(self, lesson: Lesson) -> Tested:
        """Learn a lesson; options of one that trains are holdout, flip, epochs, lr."""
        options = {name: value for name, value in lesson.options.items() if value is not None}
        flip, new = options.pop("flip", True), len(lesson.names) - lesson.known
        tunes = self._tunes(lesson, options)
        holdout = options.pop("holdout", HELD_OUT)
        share_lesson(self, lesson)
        loader, images = load_images(lesson, self.extractor, flip)
        images = of_classes(images, 0, len(lesson.names))
        is_held_out = np.zeros(len(images), dtype=bool)
        if tunes or not self.leaves_out:
            is_held_out = held_out(images, lesson.names, holdout, self.seed)
            tried = np.flatnonzero(is_held_out)
        else:
            tried = _with_others(images.labels, lesson.counts_C)
        names, nothing = lesson.names[lesson.known :], images.take(np.zeros(0, dtype=np.int64))
        train = of_classes(images.take(~is_held_out), lesson.known, new)
        task = Task(self.tasks, lesson.known, new, names, train, nothing)
        trainer = Trainer(
            self.extractor.network, loader, self.extractor.fabric, self.seed, lesson.progress
        )
        method = self._method(trainer, options)
        # without images to test on, choose as a benchmark run does
        method.teach(task, images, tried if len(tried) else None)
        self.tasks += new > 1
        self._keep(method)
        labels_N, scores_NC = method.tried if len(tried) else (tried, np.zeros((0, 1)))
        self._calibrate(labels_N, scores_NC)
        how = "held out of training, then left out in turn" if tunes else "each left out in turn"
        how = how if self.leaves_out else "held out, then taught too"
        return Tested(how, labels_N, scores_NC.argmax(1))

    def drop(self, remaining: Sequence[int]) -> None:
        method = self._method()
        method.drop(remaining)
        self._keep(method)

    def merge(self, other: "TaughtSums", numbers: Sequence[int]) -> None:
        method, theirs = self._method(), other._method()
        if method.attached is not None:
            raise DafuseError(
                f"models tuned by {self.name} cannot be merged: each has an adapter of its own"
            )
        if self.draws and self.seed != other.seed:
            raise DafuseError(
                f"models taught by {self.name} with different seeds cannot be merged: "
                "each has random columns of its own"
            )
        method.merge(theirs, numbers)
        self._keep(method)
        self.tasks = max(self.tasks, other.tasks)
        mine, its = 1 + self.temperature.images, 1 + other.temperature.images
        self.unit = geometric_mean(self.unit, mine, other.unit, its)
        self.temperature = self.temperature.joined(other.temperature)
        self.threshold = self.threshold.joined(other.threshold)

    def encoder(self, shared: Arrays) -> Encode:
        method = self._network(shared, self.extractor.fabric.device)

        @torch.inference_mode()
        def encode(squares_B3SS: np.ndarray) -> np.ndarray:
            feats_BF = self.extractor.encode(squares_B3SS, method.depths, method.attached)
            on_device_BF = torch.from_numpy(feats_BF).to(self.extractor.fabric.device)
            hidden_BM: np.ndarray = method.hidden(on_device_BF).cpu().numpy()
            return hidden_BM

        return encode

    def graph(self, shared: Arrays) -> "ModelProto":
        method = self._network(shared, torch.device("cpu"))
        return self.extractor.graph(method.depths, method.attached, method.hidden)

    def head(self) -> Head:
        classifier = {
            name.removeprefix(CLASSIFIER): one.numpy() for name, one in self.state.items()
        }
        weights_CM, step_M = classifier[self.weights], classifier.get("weights.step")
        return Head(
            weights_CM,
            classifier.get("bias", np.zeros(len(weights_CM), np.float32)),
            step_M,
            bend=BEND / self.unit,
            sharpness=sharpness(len(weights_CM), self.temperature.value),
            energy=ENERGY / self.unit,
            threshold=self.threshold.value,
        )

    def arrays(self) -> Arrays:
        named = {self._array_name(name): one.numpy() for name, one in self.state.items()}
        head = {PREDICT + name: array for name, array in self.head().arrays().items()}
        return {**named, **head}

    def numbers(self) -> Numbers:
        return {
            "tasks": float(self.tasks),
            "unit": self.unit,
            **self.temperature.numbers(),
            **self.threshold.numbers(),
            **self.head().numbers(),
        }

    def load(self, arrays: Arrays, numbers: Numbers) -> None:
        self.state = self._state_of(arrays)
        self.tasks, self.unit = int(numbers["tasks"]), numbers["unit"]
        self.temperature = QuickTemperature.from_numbers(numbers)
        self.threshold = Threshold.from_numbers(numbers, len(arrays[PREDICT + "bias"]))

    def _tunes(self, lesson: Lesson, options: dict[str, Any]) -> bool:
        """Tell whether this lesson trains an adapter; refuse options that do not fit."""
        tune = self.settings.get("tune", self.tunes)
        lessons = {"none": 0, "first": 1, "each": self.settings.get("tune_tasks", 0)}[tune]
        new = len(lesson.names) - lesson.known
        if lessons and not lesson.known and new < 2:
            raise DafuseError(
                f"the first lesson by {self.name} trains an adapter, which needs two classes or "
                "more: teach two at once, or make a model that is not tuned"
            )
        tunes = self.tasks < lessons and new > 1
        needless = options.keys() - ({"holdout"} if not self.leaves_out else set())
        if needless and not tunes:
            raise DafuseError(
                f"{', '.join(sorted(needless))} applies only to lessons that train; this one by "
                f"{self.name} does not: leave the options out"
            )
        return tunes

    def _calibrate(self, labels_N: np.ndarray, scores_NC: np.ndarray) -> None:
        """Update temperature and threshold by images of this lesson."""
        count, classes = scores_NC.shape
        if not count or classes < 2:
            return
        own_N = scores_NC[np.arange(count), labels_N]
        others_N = (scores_NC.sum(1) - own_N) / (classes - 1)
        if (unit := float((own_N - others_N).mean())) > 0:
            known = min(self.temperature.trust, self.temperature.images)
            self.unit = geometric_mean(self.unit, known, unit, count)
        self.temperature = self.temperature.after(scores_NC / self.unit, labels_N)
        self.threshold = self.threshold.after(self.head().energies(scores_NC), classes)

    def _method(self, trainer: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Return the benchmark's method with everything learned so far."""
        device = self.extractor.fabric.device
        trainer = trainer or _Still(self.extractor.network, device, self.seed)
        method = type(self).made_of(trainer=trainer, **{**self.settings, **(options or {})})
        if self.state:
            method.load_state({name: one.to(device) for name, one in self.state.items()})
        return method

    def _network(self, shared: Arrays, device: torch.device) -> Any:
        """Return the part of the method that computes hidden features, on this device."""
        still = _Still(self.extractor.network, device, self.seed)
        method = type(self).made_of(trainer=still, **self.settings)
        method.load_network({name: one.to(device) for name, one in self._state_of(shared).items()})
        return method

    def _keep(self, method: Any) -> None:
        self.state = {name: one.detach().cpu() for name, one in method.state().items()}

    def _array_name(self, name: str) -> str:
        """Return the name of an entry of the method's state in the model."""
        if name.startswith(MODULES):
            return SHARED + name
        if name.startswith(STATISTICS):
            rest = name.removeprefix(STATISTICS)
            of_class = any(fnmatchcase(rest, pattern) for pattern in self.records)
            return (CLASS if of_class else SHARED) + rest
        rest = name.removeprefix(CLASSIFIER)
        return PREDICT + {self.weights: "weights", "weights.step": "step"}.get(rest, rest)

    def _state_of(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return the method's state. It copies, since arrays from a file may be read-only."""
        state = {STATISTICS + name: array for name, array in under(CLASS, arrays).items()}
        for name, array in under(SHARED, arrays).items():
            state[name if name.startswith(MODULES) else STATISTICS + name] = array
        own = {"weights": self.weights, "step": "weights.step"}
        for name, array in under(PREDICT, arrays).items():
            state[CLASSIFIER + own.get(name, name)] = array
        return {name: torch.from_numpy(array.copy()) for name, array in state.items()}


def _with_others(labels_N: np.ndarray, counts_C: Sequence[int]) -> np.ndarray:
    """Return indices of images whose class has another; evenly spaced if many."""
    total_C = np.bincount(labels_N, minlength=len(counts_C)) + np.array(counts_C)
    return evenly_chosen(total_C[labels_N] > 1)


class TaughtRanPAC(TaughtSums):
    name: ClassVar[str] = "ranpac"
    made_of = RanPAC
    tunes: ClassVar[str] = "first"
    in_lessons: ClassVar[dict[str, Any]] = {"projection": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("moments",)
    remains: ClassVar[str] = words.RANPAC.remains


class TaughtLayUP(TaughtSums):
    name: ClassVar[str] = "layup"
    made_of = LayUP
    records: ClassVar[tuple[str, ...]] = ("moments",)
    draws: ClassVar[bool] = False
    remains: ClassVar[str] = words.LAYUP.remains


class TaughtKLDA(TaughtSums):
    name: ClassVar[str] = "klda"
    made_of = KLDA
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums.counts", "sums.means")
    weights: ClassVar[str] = "weights.values"
    remains: ClassVar[str] = words.KLDA.remains


class TaughtAnaCP(TaughtSums):
    name: ClassVar[str] = "anacp"
    made_of = AnaCP
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums*.counts", "sums*.means")
    leaves_out: ClassVar[bool] = False
    remains: ClassVar[str] = words.ANACP.remains


class TunedLift(TaughtSums):
    """`lift` with adapters; without adapters, `taught.lift` teaches it by numpy."""

    name: ClassVar[str] = "lift"
    made_of = LIFT
    in_lessons: ClassVar[dict[str, Any]] = {"keep": "classwise", "rank": 16}
    records: ClassVar[tuple[str, ...]] = ("sums.*",)
    weights: ClassVar[str] = "weights.values"
    draws: ClassVar[bool] = False
    remains: ClassVar[str] = words.TUNED_LIFT.remains

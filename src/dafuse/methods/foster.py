"""FOSTER: a second network learns what the first one lacks, then both are compressed into one.

Wang et al., "FOSTER: Feature Boosting and Compression for Class-Incremental Learning",
arXiv 2204.04662. Boosting: the old network is frozen, and a copy is trained beside it on new and
kept images, with one head over both features. Compression: both are distilled into a student, which
is the old network of the next task. Both stages weigh classes by their number of images, which
public code miscounts. Public tables quote the teacher (both networks), while the paper deploys the
student; both are recorded.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.exemplars import NOTHING, ExemplarMemory, herded
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.linear import grown_weights, linear_kaiming_init, linear_logits
from dafuse.heads.logits import balanced_weights, distill
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt, Range
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import init_class_weights


@dataclass(kw_only=True, eq=False)
class FOSTER(Method):
    """Feature boosting and compression.

    Args:
        first_epochs: training epochs over the first task's images
        epochs: epochs of boosting over a later task's images and the kept ones
        compress_epochs: epochs of compression over the same images
        batch_size: images in an optimiser step
        lr: learning rate at the start of each training; it falls to zero along a cosine
        weight_decay: weight decay of SGD in the first task and in boosting; compression has none
        boost_beta: how much more boosting weighs rare classes; 0 not at all
        compress_beta: the same for compression
        temperature: temperature of the logits in both distillations
        exemplars_per_class: images kept of each class, or all if it has fewer
        predict: with both networks (teacher), or with the student, and then only it is kept
    """

    name = "foster"
    summary = "a new network boosts the old one each task, then both are distilled into one"
    paper = "https://arxiv.org/abs/2204.04662"
    needs = "whole network"
    keeps = "old, new and student network, class weights of two heads, some images of each class"
    keeps_images = True

    first_epochs: PositiveInt = 20
    epochs: PositiveInt = 20
    compress_epochs: PositiveInt = 20
    batch_size: PositiveInt = 32
    lr: NonNegativeFloat = 1e-3
    weight_decay: NonNegativeFloat = 5e-4
    boost_beta: Annotated[float, Range(0, 0.9999)] = 0.96
    compress_beta: Annotated[float, Range(0, 0.9999)] = 0.97
    temperature: Annotated[float, Range(0.01, 100)] = 2.0
    exemplars_per_class: PositiveInt = 20
    predict: Literal["teacher", "student"] = "teacher"

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return min(t, 2) if options.get("predict", cls.predict) == "teacher" else 1

    @classmethod
    def epochs_of(cls, number: int, options: Options) -> int:
        compression = options["compress_epochs"] if number > 1 else 0
        return super().epochs_of(number, options) + compression

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        self.student = network.trainable_copy()  # also the one network of the first task
        self.old = network.trainable_copy().requires_grad_(False)
        self.new = network.trainable_copy()
        self.weights_CE = torch.zeros(0, network.width + 1, device=device)  # the student's head
        self.teacher_CF = torch.zeros(0, 2 * network.width + 1, device=device)  # over both
        self.memory = ExemplarMemory(self.trainer.kept_images(NOTHING, NOTHING))

    def learn(self, task: Task) -> dict[str, Any]:
        if task.number == 1:
            self._train_first(task)
            feats_ND, _ = self.trainer.features(task.train, None, self.student)
        else:
            images = self.memory.joined(task.train)
            counts_C = torch.bincount(torch.from_numpy(images.labels), minlength=task.seen)
            self._boost(task, images, counts_C)
            self._compress(task, images, counts_C)
            parts = [self.trainer.features(task.train, None, n)[0] for n in (self.old, self.new)]
            feats_ND = torch.cat(parts, dim=1)
        check_finite(feats_ND, f"the features after task {task.number}")
        self.memory.add(herded(task.train, feats_ND, self.exemplars_per_class))
        return {"exemplars": len(self.memory.images)}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return (self._teacher if self.predict == "teacher" else self._student)(images_B3SS)

    def predictions(self, images_B3SS: Tensor) -> dict[str, Tensor]:
        student = {"student": self._student(images_B3SS)}
        if self.predict == "student":
            return student
        return {"teacher": self._teacher(images_B3SS), **student}

    def exemplars(self) -> ImageSet:
        return self.memory.images

    def _student(self, images_B3SS: Tensor) -> Tensor:
        return linear_logits(self.trainer.encode(images_B3SS, None, self.student), self.weights_CE)

    def _teacher(self, images_B3SS: Tensor) -> Tensor:
        if not len(self.teacher_CF):
            return self._student(images_B3SS)  # the first task has one network
        feats = [self.trainer.encode(images_B3SS, None, n) for n in (self.old, self.new)]
        return linear_logits(torch.cat(feats, dim=1), self.teacher_CF)

    def _train_first(self, task: Task) -> None:
        weights_CE = nn.Parameter(self._start(task, "first", task.size))

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, None, self.student)
            return F.cross_entropy(linear_logits(feats_BD, weights_CE), labels_B)

        schedule = Schedule(self.first_epochs, self.batch_size, self.lr, self.weight_decay)
        trained = Group([*self.student.parameters(), weights_CE])
        self.trainer.fit(task, None, loss, [trained], schedule)
        self.weights_CE = weights_CE.detach()

    def _boost(self, task: Task, images: ImageSet, counts_C: Tensor) -> None:
        """Train the new network, beside the frozen one, and the head over both."""
        for network in (self.old, self.new):
            network.load_state_dict(self.student.state_dict())
        start_CF = self._start(task, "boost", task.seen, width=2 * self.trainer.network.width)
        teacher_CF = nn.Parameter(grown_weights(start_CF, self.weights_CE))
        auxiliary_CE = nn.Parameter(self._start(task, "auxiliary", task.seen))
        weights_C = balanced_weights(counts_C, self.boost_beta).to(self.trainer.device)

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            with torch.no_grad():
                old_BD = self.trainer.encode(images_B3SS, None, self.old)
            before_BC = linear_logits(old_BD, self.weights_CE)
            new_BD = self.trainer.encode(images_B3SS, None, self.new)
            logits_BC = linear_logits(torch.cat([old_BD, new_BD], dim=1), teacher_CF)
            auxiliary = F.cross_entropy(linear_logits(new_BD, auxiliary_CE), labels_B)
            kept = distill(logits_BC[:, : task.first], before_BC, self.temperature)
            return F.cross_entropy(logits_BC / weights_C, labels_B) + auxiliary + kept

        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        trained = Group([*self.new.parameters(), teacher_CF, auxiliary_CE])
        self.trainer.fit(task, None, loss, [trained], schedule, images=images)
        self.teacher_CF = teacher_CF.detach()

    def _compress(self, task: Task, images: ImageSet, counts_C: Tensor) -> None:
        """Distil both networks into the student, which starts as the old one with its head."""
        weights_CE = nn.Parameter(
            torch.cat([self.weights_CE, self._start(task, "student", task.size)])
        )
        weights_C = balanced_weights(counts_C, self.compress_beta).to(self.trainer.device)

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            with torch.no_grad():
                teacher_BC = self._teacher(images_B3SS)
            feats_BD = self.trainer.encode(images_B3SS, None, self.student)
            student_BC = linear_logits(feats_BD, weights_CE)
            return distill(student_BC, teacher_BC, self.temperature, weights_C)

        schedule = Schedule(self.compress_epochs, self.batch_size, self.lr)
        trained = Group([*self.student.parameters(), weights_CE])
        self.trainer.fit(
            task, None, loss, [trained], schedule, images=images, epochs_before=self.epochs
        )
        self.weights_CE = weights_CE.detach()

    def _start(self, task: Task, purpose: str, classes: int, width: int | None = None) -> Tensor:
        return init_class_weights(
            self.trainer, f"{task.index}/{purpose}", classes, width, linear_kaiming_init
        )

    def state(self) -> dict[str, Tensor]:
        student = {
            **prefixed("modules/student", self.student.state_dict()),
            "classifier/rows": self.weights_CE,
            **prefixed("exemplars/kept", self.memory.tensors()),
        }
        if self.predict == "student" or not len(self.teacher_CF):
            return student
        return {
            **student,
            **prefixed("modules/old", self.old.state_dict()),
            **prefixed("modules/new", self.new.state_dict()),
            "classifier/teacher": self.teacher_CF,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.student.load_state_dict(unprefixed(state, "modules/student"))
        self.weights_CE = state["classifier/rows"]
        self.memory.set(unprefixed(state, "exemplars/kept"))
        if "classifier/teacher" in state:
            self.old.load_state_dict(unprefixed(state, "modules/old"))
            self.new.load_state_dict(unprefixed(state, "modules/new"))
            self.teacher_CF = state["classifier/teacher"]

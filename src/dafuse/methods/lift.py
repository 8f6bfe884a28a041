"""lift: sums of features over images, solved exactly. Nothing has to be trained.

An image passes once through the frozen network, and features of many blocks are read. Only sums of
them are kept: a count and a mean for each class, and the scatter about the means. A ridge
regression is solved from them in closed form at any time. So the order of lessons does not matter,
a class may come back, and no tasks are needed. The penalty is chosen by leave-one-out over the
lesson's images, at the cost of a few products.

Origins: ridge regression on sums over tasks is from ACIL (arXiv 2205.14922) and RanPAC
(2307.02251), features of several blocks from LayUP (2312.08888), the adapter of the first task from
APER (2303.07338), and adapters trained from their running mean from DAF (2601.21341). Its own are
mean and std of the patch tokens of each block, weights that fall with depth, a balanced regression
with exact leave-one-out, and sums stored as a factor in half precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.depths import Depths
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.fusion.rule import running_mean
from dafuse.heads.arrays import check_finite
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.resting import Precision
from dafuse.heads.sums import classwise, pooled
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.lift_parts import MOST_COLUMNS, HeadName, kinds_of, lift_of
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt, Range
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter


@dataclass(kw_only=True, eq=False)
class LIFT(Method):
    """A closed-form classifier on features of many blocks.

    Args:
        features: what to read of the network: the last CLS token; the last three and the mean of
            the patches; every CLS token and the mean of the patches; or CLS token, mean and std
            of the patches in the last three quarters of the blocks
        width: random columns beside the features (0: linear); memory grows with the total squared
        head: ridge regression, LDA, or what leave-one-out finds better, nearest mean included
        penalty: share of the mean diagonal; null: chosen by leave-one-out in each lesson
        tune: train nothing; an adapter in the first task, then frozen; or one in each of the first
            `tune_tasks` tasks, from the mean of those before: the mean of all is used
        tune_tasks: number of tasks that train an adapter, with `tune: each`
        keep: one scatter for all classes, or a record of each class
        rank: directions of a class's record, with `keep: classwise`
        precision: precision of the sums between lessons
        epochs: training epochs over a task's images, if an adapter is trained
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of the adapter's bottleneck
    """

    name = "lift"
    summary = "sums of features of many blocks, solved in closed form; trains nothing by default"
    paper = "https://arxiv.org/abs/2307.02251"  # of RanPAC, its nearest relative: it has none
    keeps = "a count, a mean and weights for each class, one scatter for all; adapters if trained"
    trains_once = True
    observes = True

    features: Depths = "moments"
    width: Annotated[int, Range(0, MOST_COLUMNS)] = 0
    head: HeadName = "ridge"
    penalty: Annotated[float | None, Range(1e-12, 1e12)] = None
    tune: Literal["none", "first", "each"] = "none"
    tune_tasks: PositiveInt = 5
    keep: Literal["pooled", "classwise"] = "pooled"
    rank: PositiveInt = 6
    precision: Precision = "float16"
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        nowhere = torch.zeros(0, device=device)
        self.lift = lift_of(network, self.features, self.width, self.trainer.seed, nowhere)
        if self.keep == "pooled":
            sums = pooled(self.lift.width, nowhere)
        else:
            sums = classwise(self.lift.width, self.rank, nowhere)
        kinds, tokens_M = kinds_of(self.head), self.lift.tokens_M
        self.solved = ClosedForm(
            self.lift, sums, kinds, self.penalty, self.precision, nowhere, tokens_M=tokens_M
        )
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)  # a no-op until trained

    def learn(self, task: Task) -> dict[str, Any]:
        return self.teach(task, task.train)

    def teach(
        self, task: Task, images: ImageSet, tried: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Train an adapter if it is time, add images of known and new classes, and solve.

        Images at the indices `tried` choose the penalty; by default all that can be left out do.
        """
        before_NF = None
        if self._trains(task):
            if task.number > 1:  # the sums of earlier tasks must move along
                before_NF, _ = self._features(images)
            self._train(task)
        feats_NF, labels_N = self._features(images)
        check_finite(feats_NF, f"the features of task {task.number}")
        with self.trainer.phase("solve"):
            return self.solved.learn(feats_NF, labels_N, before_NF, tried)

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Add a batch to the sums; the classifier is solved when scores are next asked for."""
        self.solved.observe(self._encoded(images_B3SS), labels_B)

    @classmethod
    def needs_tasks(cls, options: Options) -> str:
        tunes = options.get("tune", "none") != "none"
        return "trains adapters in tasks (--method.tune)" if tunes else ""

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return self.solved.logits(self._encoded(images_B3SS))

    @property
    def depths(self) -> Depths:
        return self.features

    @property
    def tried(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and leave-one-out scores of the last images that were left out in turn."""
        return self.solved.tried[0], self.solved.tried_scores_NC

    def hidden(self, feats_NF: Tensor) -> Tensor:
        """Return the features that the classifier is linear in."""
        return self.lift(feats_NF)

    def drop(self, remaining: Sequence[int]) -> None:
        self.solved.drop(remaining)

    def _trains(self, task: Task) -> bool:
        """Tell whether this task trains an adapter; one class alone cannot train one."""
        last = {"none": 0, "first": 1, "each": self.tune_tasks}[self.tune]
        return task.number <= last and task.size > 1

    def _train(self, task: Task) -> None:
        """Train an adapter, and use the mean of all trained so far."""
        mean = self.adapter.tensors()
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        fit_with_proxy(self.trainer, task, self.adapter, schedule)
        self.adapter.set(running_mean(mean, self.adapter.tensors(), task.number))

    def _features(self, images: ImageSet) -> tuple[Tensor, Tensor]:
        return self.trainer.features(images, self.attached, depths=self.features)

    def _encoded(self, images_B3SS: Tensor) -> Tensor:
        return self.trainer.encode(images_B3SS, self.attached, depths=self.features)

    @property
    def attached(self) -> Adapter | None:
        return None if self.tune == "none" else self.adapter

    def state(self) -> dict[str, Tensor]:
        adapter = {} if self.tune == "none" else prefixed("modules/adapter", self.adapter.tensors())
        return {**adapter, **self.solved.state()}

    def load_network(self, state: dict[str, Tensor]) -> None:
        """Load only what hidden features depend on."""
        if self.tune != "none":
            self.adapter.set(unprefixed(state, "modules/adapter"))

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.load_network(state)
        self.solved.load_state(state)

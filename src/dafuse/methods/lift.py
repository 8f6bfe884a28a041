"""lift: sums of features over images, solved exactly. Nothing has to be trained.

An image passes once through the frozen network, and features of many blocks are read. Of these only
sums are kept: a count and a mean of each class, and the scatter about the means. A ridge regression
follows from them in closed form at any time, so the order of lessons does not matter, a class may
come back, and there need not be any tasks. Its penalty is chosen by leaving out each image of the
lesson in turn, exactly and for nothing.

What it owes to whom: ridge regression on sums over tasks to ACIL (arXiv 2205.14922) and RanPAC
(2307.02251), features of several blocks to LayUP (2312.08888), the adapter of the first task to
APER (2303.07338), adapters trained from their running mean to DAF (2601.21341). Mean and standard
deviation of the patch tokens of each block, weights that fall with depth, a balanced regression
with exact leave-one-out, and sums that rest as a factor in half precision are its own.
"""

import math
from dataclasses import astuple, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dafuse.data.stream import Task
from dafuse.fusion.rule import running_mean
from dafuse.heads.arrays import Array
from dafuse.heads.choice import Choice, choose
from dafuse.heads.closed_form import KINDS, Kind, Linear
from dafuse.heads.drift import follow
from dafuse.heads.lifting import Lift, depth_weights
from dafuse.heads.resting import Precision, at_rest, awake
from dafuse.heads.sums import ClassSums, classwise, pooled
from dafuse.methods.contract import Method
from dafuse.methods.options import check_finite, check_ranges
from dafuse.methods.packing import packed, unpacked
from dafuse.methods.schedule import Schedule
from dafuse.methods.starts import start_adapter
from dafuse.methods.training import fit_with_proxy
from dafuse.seeds import derive
from dafuse.vit.adapter import Adapter
from dafuse.vit.backbone import ViT
from dafuse.vit.depths import Depths, parts_of

Head = Literal["ridge", "lda", "auto"]


@dataclass(kw_only=True, eq=False)
class LIFT(Method):
    """A closed-form classifier on features of many blocks.

    Args:
        features: what is read of the network: the last CLS token; the last three and the mean of
            the patches; every CLS token and the mean of the patches; or CLS token, mean and
            standard deviation of the patches of the last three quarters of the blocks
        width: random columns beside the features (0: linear); memory grows with the square of all
        head: ridge regression, LDA, or what leave-one-out finds better, nearest mean included
        penalty: share of the mean diagonal; null: chosen by leave-one-out in each lesson
        tune: train nothing; an adapter in the first task, then frozen; or one in each of the first
            `tune_tasks` tasks, from the running mean of those before, which is what is used
        tune_tasks: tasks that train an adapter, with `tune: each`
        keep: one scatter for all classes, or a record of each class
        rank: directions of a class's record, with `keep: classwise`
        precision: of the sums between lessons
        epochs: passes over a task's images, where an adapter is trained
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: of SGD, on the adapter and the head it is trained with
        adapter_rank: width of the adapter's bottleneck
    """

    name = "lift"
    summary = "sums of features of many blocks, solved in closed form; trains nothing by default"
    paper = "https://arxiv.org/abs/2307.02251"
    keeps = "a count, a mean and a row for each class, one scatter for all; adapters where tuned"
    trains_once = True
    observes = True

    features: Depths = "moments"
    width: int = 0
    head: Head = "ridge"
    penalty: float | None = None
    tune: Literal["none", "first", "each"] = "none"
    tune_tasks: int = 5
    keep: Literal["pooled", "classwise"] = "pooled"
    rank: int = 8
    precision: Precision = "float16"
    epochs: int = 20
    batch_size: int = 48
    lr: float = 0.01
    weight_decay: float = 5e-4
    adapter_rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_0, at_least_1 = (0, math.inf), (1, math.inf)
        check_ranges(self, width=at_least_0, rank=at_least_1, tune_tasks=at_least_1)
        if self.penalty is not None:
            check_ranges(self, penalty=(1e-12, 1e12))
        vit, device = self.trainer.vit, self.trainer.device
        nowhere = torch.zeros(0, device=device)
        self.lift = lift_of(vit, self.features, self.width, self.trainer.seed, nowhere)
        if self.keep == "pooled":
            self.sums = pooled(self.lift.width, nowhere)
        else:
            self.sums = classwise(self.lift.width, self.rank, nowhere)
        self.adapter = start_adapter(self.trainer, 0, self.adapter_rank)  # a no-op until trained
        self.choice = Choice(KINDS[0], 0.0, 1.0, 0, 0.0)
        self.weights_CM = torch.zeros(0, self.lift.width, device=device)
        self.bias_C = torch.zeros(0, device=device)
        self.resting = at_rest(self.sums, self.precision)  # what outlives a lesson of the sums
        self._settled = True  # the classifier is that of the sums

    def learn(self, task: Task) -> dict[str, Any]:
        before_NF = self._tuned(task)
        feats_NF, labels_N = self._features(task)
        check_finite(feats_NF, f"the features of task {task.number}")
        with self.trainer.phase("solve"):
            hidden_NM = self.lift(feats_NF)
            if before_NF is not None:
                follow(self.sums, self.lift(before_NF), hidden_NM)
            self.sums.add(hidden_NM, labels_N)
            self._settle(hidden_NM, labels_N)
        left_out = {"images": self.choice.left_out, "accuracy": self.choice.accuracy}
        return {"head": self.choice.kind, "penalty": self.choice.penalty, "left_out": left_out}

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Add a batch to the sums; the classifier follows when it is asked for."""
        self.sums.add(self._hidden(images_B3SS), labels_B)
        self._settled = False

    @classmethod
    def needs_tasks(cls, options: dict[str, Any]) -> str:
        tunes = options.get("tune", "none") != "none"
        return "trains adapters in tasks (--method.tune)" if tunes else ""

    def logits(self, images_B3SS: Tensor) -> Tensor:
        self._settle_if_needed()
        scores_BC = self._hidden(images_B3SS) @ self.weights_CM.T + self.bias_C
        return scores_BC / self.choice.temperature

    def _tuned(self, task: Task) -> Tensor | None:
        """Train an adapter where it is time to; the task's features before, if sums must follow.

        The adapter in use is the mean of those trained so far.
        """
        last = {"none": 0, "first": 1, "each": self.tune_tasks}[self.tune]
        if task.number > last:
            return None
        before_NF = self._features(task)[0] if task.number > 1 else None
        mean = self.adapter.tensors()
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
        fit_with_proxy(self.trainer, task, self.adapter, schedule)
        self.adapter.set(running_mean(mean, self.adapter.tensors(), task.number))
        return before_NF

    def _features(self, task: Task) -> tuple[Tensor, Tensor]:
        return self.trainer.features(task.train, self._attached, depths=self.features)

    def _hidden(self, images_B3SS: Tensor) -> Tensor:
        return self.lift(self.trainer.encode(images_B3SS, self._attached, depths=self.features))

    @property
    def _attached(self) -> Adapter | None:
        return None if self.tune == "none" else self.adapter

    def _settle(self, hidden_NM: Tensor, labels_N: Tensor) -> None:
        """Have the classifier follow from the sums; these images of theirs are left out in turn."""
        self.resting, self.choice, found = settled(
            self.sums, hidden_NM, labels_N, self.precision, self.head, self.penalty
        )
        check_finite(found.weights_MC, "the weights of the classifier")
        self.weights_CM = found.weights_MC.T.to(self.weights_CM).contiguous()
        self.bias_C = found.bias_C.to(self.bias_C)
        self._settled = True

    def _settle_if_needed(self) -> None:
        """After batches that were observed; with nothing at hand to leave out."""
        if not self._settled:
            nothing = self.weights_CM[:0]
            self._settle(nothing, torch.zeros(0, dtype=torch.int64, device=nothing.device))

    def state(self) -> dict[str, Tensor]:
        self._settle_if_needed()
        kind, *numbers = astuple(self.choice)
        choice = torch.tensor([float(KINDS.index(kind)), *numbers], dtype=torch.float64)
        return {
            **({} if self.tune == "none" else packed("modules/adapter", self.adapter.tensors())),
            **packed("statistics/sums", self.resting),
            "classifier/weights": self.weights_CM,
            "classifier/bias": self.bias_C,
            "classifier/choice": choice,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self.tune != "none":
            self.adapter.set(unpacked(state, "modules/adapter"))
        self.resting = unpacked(state, "statistics/sums")
        awake(self.sums, self.resting)
        self.weights_CM, self.bias_C = state["classifier/weights"], state["classifier/bias"]
        kind, penalty, temperature, left_out, accuracy = state["classifier/choice"].tolist()
        self.choice = Choice(KINDS[int(kind)], penalty, temperature, int(left_out), accuracy)
        self._settled = True


def lift_of(vit: ViT, features: Depths, width: int, seed: int, like: Array) -> Lift:
    """The map from what is read of a network to what the sums are of."""
    blocks = [part.block for part in parts_of(features, vit.depth)]
    weights_F = depth_weights(blocks, vit.depth, vit.width)
    return Lift(weights_F, width, derive(seed, "lift"), like)


def settled(
    sums: ClassSums,
    hidden_NM: Array,
    labels_N: Array,
    precision: Precision,
    head: Head,
    penalty: float | None,
) -> tuple[dict[str, Array], Choice, Linear]:
    """Round the sums to the precision they rest in, then solve: a resumed run does the same.

    What rests of them, the head chosen by leaving out these images, and its weights.
    """
    resting = at_rest(sums, precision)
    awake(sums, resting)
    kinds: tuple[Kind, ...] = ("ridge", "lda") if head == "auto" else (head,)
    return resting, *choose(sums, hidden_NM, labels_N, kinds, penalty)

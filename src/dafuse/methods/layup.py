"""LayUP: ridge regression on the CLS tokens of the last blocks, exact over all tasks.

Ahrens et al., "Read Between the Layers: Leveraging Multi-Layer Representations for Rehearsal-Free
Continual Learning with Pre-Trained Models", arXiv 2312.08888. The CLS tokens of the last k blocks
are concatenated to one feature. Its second moments, summed over tasks, decorrelate the class
prototypes: W = (G + λI)⁻¹ Q, which is ridge regression to one-hot targets without an intercept.

As in the paper and the authors' code: k = 6, no random projection, plain linear scores. In each
task λ is chosen among the authors' values by the mean accuracy on four stratified folds of the
task's images, with the sums of the earlier tasks in every fit.

Deviations. The authors take the CLS tokens as the blocks put them out, without a norm. Here each
block's are normalised (`backbones.depths`), so that no block outweighs the others, which also
changes the scale of λ. The adaptation to the first task (`tune: first`) is APER's, by SGD. The
authors' is by AdamW, their code stops it by accuracy on the test images, and for some data sets it
trains scale-and-shift layers or prompts. G is in float64, while the authors have float32. We do not
know how the authors choose λ on a stream without tasks; here it is `usual_penalty`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.depths import Depths, place_of, width_of
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.choice import usual_penalty
from dafuse.heads.ridge import exact, left_out, rounding_floor, solve, statistics
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt, Range
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter

FOLDS = 4
PENALTIES = (*(10 ** (power / 2) for power in range(-8, 7)), 1e-8)  # of equal ones, the first wins


@dataclass(kw_only=True, eq=False)
class LayUP(Method):
    """Ridge regression on CLS tokens of several blocks.

    Args:
        blocks: number of last blocks to read; all, if the network has fewer
        penalty: added to the diagonal of the Gram matrix; null: chosen in each task
        tune: train nothing, or an adapter in the first task, then frozen
        epochs: training epochs over the first task's images, if an adapter is trained
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of the adapter's bottleneck
    """

    name = "layup"
    summary = "LayUP: ridge regression on the CLS tokens of the last blocks; trains nothing"
    paper = "https://arxiv.org/abs/2312.08888"
    keeps = (
        "the Gram matrix of several blocks' features, a moment and weights for each class; the "
        "first task's adapter if trained"
    )
    trains_once = True
    observes = True
    depths: ClassVar[Depths] = "all"

    blocks: PositiveInt = 6
    penalty: Annotated[float | None, Range(0)] = None
    tune: Literal["none", "first"] = "none"
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        *wholes, _mean = parts = network.parts("all")
        read = wholes[-self.blocks :]
        self.columns = slice(place_of(read[0], parts).start, place_of(read[-1], parts).stop)
        wide = width_of(read)
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)  # a no-op until trained
        self.gram_MM = exact(torch.zeros(wide, wide, device=device))
        self.moments_CM = self.gram_MM[:0]
        self.count = 0  # number of images in the sums
        self.weights_CM = torch.zeros(0, wide, device=device)
        self._solved = True  # whether the class weights are up to date with the sums
        self.tried = np.zeros(0, np.int64), np.zeros((0, 0))  # labels and scores, left out

    def learn(self, task: Task) -> dict[str, Any]:
        return self.teach(task, task.train)

    def teach(
        self, task: Task, images: ImageSet, tried: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Train an adapter if it is time, add images of known and new classes, and solve.

        Images at the indices `tried` are then scored as if they had not been taught.
        """
        if task.number == 1 and self.tune == "first":
            schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
            fit_with_proxy(self.trainer, task, self.adapter, schedule)
        feats_NF, labels_N = self.trainer.features(images, self.attached, depths=self.depths)
        feats_NM = self.hidden(feats_NF)
        check_finite(feats_NM, f"the features of task {task.number}")
        with self.trainer.phase("ridge"):
            chosen = self._tried(feats_NM, labels_N) if self.penalty is None else self.penalty
            self._add(feats_NM, labels_N)
            penalty = self._solve(chosen)
            if tried is not None and len(tried):
                sums = self.gram_MM, self.moments_CM, penalty
                scores_NC = left_out(*sums, feats_NM[tried], labels_N[tried])
                self.tried = labels_N[tried].cpu().numpy(), scores_NC.cpu().numpy()
        return {"penalty_chosen": chosen, "penalty": penalty}

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Add a batch to the sums; the classifier is solved when scores are next asked for."""
        feats_BM = self._features(images_B3SS)
        check_finite(feats_BM, "the features of a batch")
        self._add(feats_BM, labels_B)
        self._solved = False

    @classmethod
    def needs_tasks(cls, options: Options) -> str:
        tunes = options.get("tune", "none") != "none"
        return "trains an adapter in the first task (--method.tune)" if tunes else ""

    def logits(self, images_B3SS: Tensor) -> Tensor:
        self._solve_if_needed()
        return self._features(images_B3SS) @ self.weights_CM.T

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only; in ridge regression the weights of classes are independent."""
        self._solve_if_needed()
        kept = list(remaining)
        self.moments_CM, self.weights_CM = self.moments_CM[kept], self.weights_CM[kept]

    def merge(self, other: "LayUP", numbers: Sequence[int]) -> None:
        """Take up all that another classifier knows; its class i is ``numbers[i]`` here."""
        classes = max(len(self.moments_CM), max(numbers, default=-1) + 1)
        moments_CM = self.gram_MM.new_zeros(classes, len(self.gram_MM))
        moments_CM[: len(self.moments_CM)] = self.moments_CM
        moments_CM[list(numbers)] += other.moments_CM
        self.gram_MM, self.moments_CM = self.gram_MM + other.gram_MM, moments_CM
        self.count += other.count
        self._solve(self.penalty)

    @property
    def attached(self) -> Adapter | None:
        return None if self.tune == "none" else self.adapter

    def _features(self, images_B3SS: Tensor) -> Tensor:
        return self.hidden(self.trainer.encode(images_B3SS, self.attached, depths=self.depths))

    def hidden(self, feats_NF: Tensor) -> Tensor:
        """Return the features that the classifier is linear in."""
        return feats_NF[:, self.columns]

    def _with(self, feats_NM: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums G and Q with these images added."""
        classes = max(len(self.moments_CM), int(labels_N.max()) + 1)
        gram_MM, moments_CM = statistics(feats_NM, F.one_hot(labels_N, classes))
        moments_CM[: len(self.moments_CM)] += self.moments_CM
        return gram_MM + self.gram_MM, moments_CM

    def _add(self, feats_NM: Tensor, labels_N: Tensor) -> None:
        self.gram_MM, self.moments_CM = self._with(feats_NM, labels_N)
        self.count += len(feats_NM)

    def _tried(self, feats_NM: Tensor, labels_N: Tensor) -> float | None:
        """Return the penalty of the best mean accuracy over folds; None if images are too few."""
        hot_NC = F.one_hot(labels_N)
        within_N = (hot_NC.cumsum(0) * hot_NC).sum(1) - 1  # the image's number within its class
        accuracy = dict.fromkeys(PENALTIES, 0.0)
        folds = [(within_N % FOLDS) == fold for fold in range(FOLDS)]
        for held_N in (held_N for held_N in folds if held_N.any() and not held_N.all()):
            gram_MM, moments_CM = self._with(feats_NM[~held_N], labels_N[~held_N])
            floor = rounding_floor(gram_MM, torch.float64)
            for penalty in PENALTIES:
                weights_CM = solve(gram_MM, moments_CM, max(penalty, floor))
                found_K = (exact(feats_NM[held_N]) @ weights_CM.T).argmax(1)
                right_K = found_K == labels_N[held_N].to(found_K.device)
                accuracy[penalty] += float(right_K.double().mean())
        return max(PENALTIES, key=accuracy.__getitem__) if any(accuracy.values()) else None

    def _solve(self, penalty: float | None) -> float:
        """Solve the class weights at this penalty, or at the usual one; return the penalty used."""
        if penalty is None:
            usual = usual_penalty("ridge", self.count, len(self.gram_MM))
            penalty = usual * float(self.gram_MM.diagonal().mean())
        penalty = max(penalty, rounding_floor(self.gram_MM, torch.float64))
        self.weights_CM = solve(self.gram_MM, self.moments_CM, penalty).to(self.weights_CM)
        check_finite(self.weights_CM, "the class weights")
        self._solved = True
        return penalty

    def _solve_if_needed(self) -> None:
        """Solve after observed batches, when no images are at hand to try penalties on."""
        if not self._solved:
            self._solve(self.penalty)

    def state(self) -> dict[str, Tensor]:
        self._solve_if_needed()
        return {
            **({} if self.tune == "none" else prefixed("modules/adapter", self.adapter.tensors())),
            "statistics/gram": self.gram_MM,
            "statistics/moments": self.moments_CM,
            "statistics/count": torch.tensor(self.count),
            "classifier/rows": self.weights_CM,
        }

    def load_network(self, state: dict[str, Tensor]) -> None:
        """Load only what hidden features depend on."""
        if self.tune != "none":
            self.adapter.set(unprefixed(state, "modules/adapter"))

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.load_network(state)
        self.gram_MM = exact(state["statistics/gram"])
        self.moments_CM = exact(state["statistics/moments"])
        self.count = int(state["statistics/count"])
        self.weights_CM = state["classifier/rows"]
        self._solved = True

"""AnaCP: ridge regression onto class means that were pushed apart, then onto classes.

Momeni, Xiao and Liu, "AnaCP: Toward Upper-Bound Continual Learning via Analytic Contrastive
Projection", arXiv 2511.13880. Several random lifts, each followed by ridge regression, project a
feature towards the target of its class. The mean over lifts goes through another random lift to a
ridge classifier. The projection changes with every class, so that classifier is fitted again each
time, to features drawn from a Gaussian for each class with one covariance for all. Only sums are
kept, so images may come in any order and any batches.

As in the paper: three lifts of 5,000 columns each, GELU, a penalty of 100, 100 features drawn for
each class, and no training but an adapter for the first task (`tune: first`).

Paper and authors' code disagree on the targets. These are the code's, which presumably produced the
published results: the whitened means are centred, every singular value grows by alpha (the paper's
lemma has signs), the spread means are whitened a second time (the paper undoes the whitening:
`dewhiten`) and scaled to length 1. Features and every lift's projection have length 1 too, which
the paper does not say.

Deviations. Centring the means makes one singular value zero. The code raises that one too, in a
direction that rounding decides; here it stays zero. The covariance is that of the paper's equation
10. Over t equal tasks the code counts the first one twice, and what it adds to the variances
(`jitter`) shrinks from 1e-4 to 2e-4 / (t + 1); here that is constant. The noise of drawn features
is the same in each task, so that the result depends on the sums alone. The adapter of the first
task is APER's, by SGD; the authors' is linear, of rank 8, by Adam.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.depths import Depths
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.heads.arrays import add_to_diagonal, check_finite
from dafuse.heads.resting import Precision, awake, rounded
from dafuse.heads.ridge import solve, statistics
from dafuse.heads.sums import ClassSums, pooled
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt, Range
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter
from dafuse.seeds import torch_generator

ROUNDING = 1e-9  # a smaller share of the largest singular value is rounding


@dataclass(kw_only=True, eq=False)
class AnaCP(Method):
    """Ridge regression onto spread class means, then onto classes through drawn features.

    Args:
        lifts: random lifts whose projections are averaged
        width: random columns of each lift; memory grows with its square
        penalty: added to the diagonal of every Gram matrix
        alpha: added to the singular values of the whitened class means
        dewhiten: undo the whitening of the spread means, as in the paper, or whiten them again
        samples: features drawn for each class to fit the classifier
        jitter: added to the variances of features, which have length 1
        precision: precision of the sums between lessons
        tune: train nothing, or an adapter in the first task, then frozen
        epochs: training epochs over the first task's images, if an adapter is trained
        batch_size: images in an optimiser step
        lr: learning rate at the start; it falls to zero along a cosine
        weight_decay: weight decay of SGD, on the adapter and its temporary head
        adapter_rank: width of the adapter's bottleneck
    """

    name = "anacp"
    summary = "AnaCP: ridge regression onto spread class means, then onto classes; trains nothing"
    paper = "https://arxiv.org/abs/2511.13880"
    keeps = (
        "counts, means, a target and weights for each class, the scatter of features and of three "
        "random lifts (150 MB by default); the first task's adapter if trained"
    )
    trains_once = True
    observes = True
    depths: ClassVar[Depths] = "last"

    lifts: PositiveInt = 3
    width: PositiveInt = 5000
    penalty: Annotated[float, Range(1e-12, 1e12)] = 100.0
    alpha: NonNegativeFloat = 1.0
    dewhiten: bool = False
    samples: PositiveInt = 100
    jitter: Annotated[float, Range(1e-12, 1e12)] = 1e-4
    precision: Precision = "float32"
    tune: Literal["none", "first"] = "none"
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        device, wide = self.trainer.device, self.trainer.network.width
        self.adapter = init_adapter(self.trainer, 0, self.adapter_rank)  # a no-op until trained
        self.random_HDM = [self._random(f"lift {number}") for number in range(self.lifts)]
        self.last_DM = self._random("classifier")
        nowhere = torch.zeros(0, device=device)
        self.sums = [pooled(wide, nowhere), *(pooled(self.width, nowhere) for _ in self.random_HDM)]
        self.targets_CD = torch.zeros(0, wide, device=device)
        self.onto_HCM = torch.zeros(self.lifts, 0, self.width, device=device)
        self.weights_CM = torch.zeros(0, self.width, device=device)
        self._rest()
        self._solved = True  # whether targets and class weights are up to date with the sums
        self.tried = np.zeros(0, np.int64), np.zeros((0, 0))  # labels and scores, held out

    def learn(self, task: Task) -> dict[str, Any]:
        return self.teach(task, task.train)

    def teach(
        self, task: Task, images: ImageSet, tried: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Train an adapter if it is time, add images of known and new classes, and solve.

        Images at the indices `tried` are scored before they are added.
        """
        if task.number == 1 and self.tune == "first":
            schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay)
            fit_with_proxy(self.trainer, task, self.adapter, schedule)
        feats_ND, labels_N = self.trainer.features(images, self.attached)
        check_finite(feats_ND, f"the features of task {task.number}")
        with self.trainer.phase("solve"):
            if tried is not None and len(tried):
                now = np.ones(len(feats_ND), dtype=bool)
                now[tried] = False
                self._add(feats_ND[now], labels_N[now])
                self._solve()
                scores_NC = self.hidden(feats_ND[tried]) @ self.weights_CM.T
                self.tried = labels_N[tried].cpu().numpy(), scores_NC.cpu().numpy()
                feats_ND, labels_N = feats_ND[tried], labels_N[tried]
            self._add(feats_ND, labels_N)
            self._solve()
            self.sums = self._rounded
        means_CD = self.sums[0].means_CM
        return {"alike": {"means": alike(means_CD), "targets": alike(self.targets_CD)}}

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Add a batch to the sums; the classifier is solved when scores are next asked for."""
        feats_BD = self.trainer.encode(images_B3SS, self.attached)
        check_finite(feats_BD, "the features of a batch")
        self._add(feats_BD, labels_B)
        self._solved = False

    @classmethod
    def needs_tasks(cls, options: Options) -> str:
        tunes = options.get("tune", "none") != "none"
        return "trains an adapter in the first task (--method.tune)" if tunes else ""

    def logits(self, images_B3SS: Tensor) -> Tensor:
        self._solve_if_needed()
        return self.hidden(self.trainer.encode(images_B3SS, self.attached)) @ self.weights_CM.T

    def drop(self, remaining: Sequence[int]) -> None:
        """Keep these classes only; every scatter keeps what the others added."""
        for sums in self.sums:
            sums.take(remaining)
        self._solve()
        self.sums = self._rounded

    def merge(self, other: "AnaCP", numbers: Sequence[int]) -> None:
        """Take up all that another classifier knows; its class i is ``numbers[i]`` here."""
        for mine, theirs in zip(self.sums, other.sums, strict=True):
            mine.merge(theirs.renumbered(numbers))
        self._solve()
        self.sums = self._rounded

    @property
    def attached(self) -> Adapter | None:
        return None if self.tune == "none" else self.adapter

    def _random(self, purpose: str) -> Tensor:
        """Draw the columns of a lift again from the seed; they are not stored."""
        generator = torch_generator(self.trainer.seed, "anacp", purpose)
        drawn_DM = torch.randn(self.trainer.network.width, self.width, generator=generator)
        return drawn_DM.to(self.trainer.device)

    def _projected(self, units_ND: Tensor) -> Tensor:
        """Return the mean over lifts of projections towards the targets (17).

        Ridge regression is linear in its targets, so a projection is the class scores times the
        class targets.
        """
        found_ND = torch.zeros_like(units_ND)
        for random_DM, onto_CM in zip(self.random_HDM, self.onto_HCM, strict=True):
            scores_NC = F.gelu(units_ND @ random_DM) @ onto_CM.T  # (5)
            found_ND += F.normalize(scores_NC @ self.targets_CD, dim=1)
        return found_ND / self.lifts

    def hidden(self, feats_ND: Tensor) -> Tensor:
        """Return the features that the classifier is linear in."""
        return self._hidden(F.normalize(feats_ND, dim=1))

    def _hidden(self, units_ND: Tensor) -> Tensor:
        return F.gelu(self._projected(units_ND) @ self.last_DM)

    def _add(self, feats_ND: Tensor, labels_N: Tensor) -> None:
        units_ND = F.normalize(feats_ND, dim=1)
        of_feats, *of_lifts = self.sums
        labels_N = labels_N.to(of_feats.means_CM.device)
        of_feats.add(units_ND, labels_N)
        for sums, random_DM in zip(of_lifts, self.random_HDM, strict=True):
            sums.add(F.gelu(units_ND @ random_DM), labels_N)

    def _rest(self) -> None:
        found = [rounded(sums, self.precision) for sums in self.sums]
        self._rounded = [sums for sums, _ in found]
        self.resting = [resting for _, resting in found]

    def _solve(self) -> None:
        """Solve targets and class weights from the sums in their stored precision; `sums` stays."""
        self._rest()
        of_feats, *of_lifts = self._rounded
        means_CD, scatter_DD = of_feats.means_CM, of_feats.scatter.square()
        covariance_DD = add_to_diagonal(scatter_DD / of_feats.images, self.jitter)  # (10)
        targets_CD = pushed_apart(means_CD, covariance_DD, self.alpha, self.dewhiten)
        self.targets_CD = targets_CD.to(self.weights_CM)
        onto = [solve(*gram_and_moments(sums), self.penalty) for sums in of_lifts]  # (7, 9)
        self.onto_HCM = torch.stack(onto).to(self.weights_CM)
        drawn_ND = self._drawn(means_CD, covariance_DD)
        hot_NC = torch.eye(of_feats.classes).repeat_interleave(self.samples, 0).to(drawn_ND)
        gram_MM, moments_CM = statistics(drawn_ND, hot_NC, self._hidden)
        self.weights_CM = solve(gram_MM, moments_CM, self.penalty).to(self.weights_CM)  # (6)
        check_finite(self.weights_CM, "the class weights")
        self._solved = True

    def _drawn(self, means_CD: Tensor, covariance_DD: Tensor) -> Tensor:
        """Draw features for each class in turn, from its mean and the covariance of all classes."""
        generator = torch_generator(self.trainer.seed, "anacp", "drawn")
        noise_CKD = torch.randn(len(means_CD), self.samples, means_CD.shape[1], generator=generator)
        lower_DD = torch.linalg.cholesky(covariance_DD).to(self.weights_CM)
        drawn_CKD = means_CD[:, None].to(lower_DD) + noise_CKD.to(lower_DD) @ lower_DD.T
        return drawn_CKD.flatten(0, 1)

    def _solve_if_needed(self) -> None:
        """Solve after observed batches."""
        if not self._solved:
            self._solve()

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs. From here on the sums are rounded, here as there."""
        self._solve_if_needed()
        self.sums = self._rounded
        found = {} if self.tune == "none" else prefixed("modules/adapter", self.adapter.tensors())
        for number, resting in enumerate(self.resting):
            found |= prefixed(f"statistics/sums{number}", resting)
        found |= {"classifier/targets": self.targets_CD, "classifier/onto": self.onto_HCM}
        return found | {"classifier/rows": self.weights_CM}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.load_network(state)
        self.resting = [unprefixed(state, f"statistics/sums{n}") for n in range(len(self.sums))]
        for sums, resting in zip(self.sums, self.resting, strict=True):
            awake(sums, resting)
        self._rounded = self.sums
        self.weights_CM, self._solved = state["classifier/rows"], True

    def load_network(self, state: dict[str, Tensor]) -> None:
        """Load only what hidden features depend on."""
        if self.tune != "none":
            self.adapter.set(unprefixed(state, "modules/adapter"))
        self.targets_CD, self.onto_HCM = state["classifier/targets"], state["classifier/onto"]


def pushed_apart(means_CD: Tensor, covariance_DD: Tensor, alpha: float, dewhiten: bool) -> Tensor:
    """Return targets [C, D] of length 1: class means, pushed apart where features vary little."""
    values_D, vectors_DD = torch.linalg.eigh(covariance_DD)
    whitening_DD = vectors_DD / values_D.sqrt() @ vectors_DD.T
    centre_D = means_CD.mean(0)
    white_CD = (means_CD - centre_D) @ whitening_DD  # (11)
    left_CK, values_K, right_KD = torch.linalg.svd(white_CD, full_matrices=False)  # (12)
    raised_K = (values_K + alpha) * (values_K > ROUNDING * values_K.max())  # (13)
    apart_CD = left_CK * raised_K @ right_KD
    last_DD = vectors_DD * values_D.sqrt() @ vectors_DD.T if dewhiten else whitening_DD  # (16)
    return F.normalize(apart_CD @ last_DD + centre_D, dim=1)


def gram_and_moments(sums: ClassSums) -> tuple[Tensor, Tensor]:
    """Return Σ h hᵀ [M, M] and for each class Σ h [C, M]: sums about the origin."""
    moments_CM = sums.counts_C[:, None] * sums.means_CM
    return sums.scatter.square() + moments_CM.T @ sums.means_CM, moments_CM


def alike(rows_CD: Tensor) -> float:
    """Return the mean absolute cosine between two of these rows; 0 if there is one row."""
    units_CD = F.normalize(rows_CD, dim=1)
    sizes_CC = (units_CD @ units_CD.T).abs()
    pairs = len(rows_CD) * (len(rows_CD) - 1)
    return float(sizes_CC.sum() - sizes_CC.trace()) / max(1, pairs)

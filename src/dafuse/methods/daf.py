"""DAF: one adapter trained per task, fused in closed form into a single global adapter.

Liu et al., "Dynamical Adapter Fusion: Constructing A Global Adapter for Pre-Trained Model-based
Class-Incremental Learning", arXiv 2601.21341. `DAF.learn` is the paper's Algorithm 1. Where the
paper is silent or contradicts itself there is an option, and `docs/daf.md` says which and why.

Not in the paper: with `head: ridge` or `lda` the classifier is solved from sums of features, which
separates the effect of the fusion from that of the classifier.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, Tensors
from dafuse.data.stream import Task
from dafuse.fusion.diagnosis import diagnose, movement
from dafuse.fusion.rule import FIXED_RULES, NEED_MEAN, fuse, running_mean
from dafuse.heads.arrays import check_finite
from dafuse.heads.classifier import ClosedForm, of_last_token
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.heads.gaussians import ClassMemory, Sampler
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.curvature import curvature_at, packed_curvature, unpacked_curvature
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt, Share
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import aligned, init_adapter, init_class_weights
from dafuse.seeds import derive


@dataclass(kw_only=True, eq=False)
class DAF(Method):
    """Dynamical Adapter Fusion; the classifier is built with the adapter that will predict.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate at the start of each task; it falls to zero along a cosine
        momentum: momentum of SGD
        weight_decay: weight decay of SGD, on the adapter and the head
        adapter_rank: width of the adapter's bottleneck
        adapter_scale: constant factor of the adapter's output
        adapter_dropout: dropout inside the adapter during training
        init: init of a task's adapter: the mean of the earlier ones (the paper's robust
            initialisation), the previous one, a new random one, or always the same random one
        rule: how the global adapter is made: the paper's fusion, fixed thirds, the last task's
            adapter alone, or the mean of all task adapters
        alpha: weight of the Fisher ratio (Eq. 13); larger keeps more of the new adapter
        gamma: weight of the init against the previous global adapter; the paper derives 0.5
        gamma_consistent: derive the coefficient for this gamma, not for 0.5
        use_gradient: keep the gradient's term in the coefficient
        fisher: mean of the squared gradients of samples (exact) or of batches (a shortcut)
        fisher_scope: the entries over which the Fisher diagonal's minimum and mean are taken
        first_task: copy the first adapter, as there is no past to protect, or fuse it with the
            random initialisation (Algorithm 1 as printed)
        stats_adapter: the adapter under which class means and covariances are measured: the
            global one, as at inference, or the task's, as in the paper's appendix
        memory: the form in which a class's covariance is kept
        memory_rank: directions kept by the low_rank memory
        memory_dtype: precision of the kept statistics
        align_epochs: epochs of classifier alignment; 0 turns it off
        align_samples: features drawn for each class in each epoch
        align_lr: learning rate of the alignment
        head: the classifier: class weights aligned with class Gaussians, as in the paper; or
            ridge regression or LDA in closed form, from sums of lifted features. Sums of earlier
            tasks stay as they were measured, under the adapter at the time
        head_width: random columns beside the features, for a head in closed form
    """

    name = "daf"
    summary = "Dynamical Adapter Fusion: one global adapter, fused in closed form after each task"
    paper = "https://arxiv.org/abs/2601.21341"
    needs = "adapters"
    keeps = "the global adapter, the mean adapter, a Gaussian and weights for each class"
    after_training = frozenset(
        {"rule", "alpha", "gamma", "gamma_consistent", "use_gradient", "fisher", "fisher_scope"}
        | {"first_task", "stats_adapter", "memory", "memory_rank", "memory_dtype"}
        | {"align_epochs", "align_samples", "align_lr", "head", "head_width"}
    )

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 48
    lr: NonNegativeFloat = 0.01
    momentum: Share = 0.9
    weight_decay: NonNegativeFloat = 5e-4
    adapter_rank: PositiveInt = 16
    adapter_scale: float = 0.1
    adapter_dropout: Share = 0.1
    init: Literal["robust", "previous", "random", "random_shared"] = "robust"
    rule: Literal["dynamic", "static", "last", "mean"] = "dynamic"
    alpha: NonNegativeFloat = 1.25
    gamma: Share = 0.5
    gamma_consistent: bool = False
    use_gradient: bool = True
    fisher: Literal["per_sample", "per_batch"] = "per_sample"
    fisher_scope: Literal["global", "layer", "tensor"] = "global"
    first_task: Literal["copy", "fuse"] = "copy"
    stats_adapter: Literal["global", "task"] = "global"
    memory: Literal["full", "diagonal", "low_rank"] = "full"
    memory_rank: PositiveInt = 16
    memory_dtype: Literal["float32", "float16"] = "float32"
    align_epochs: NonNegativeInt = 30
    align_samples: PositiveInt = 240
    align_lr: NonNegativeFloat = 0.005
    head: Literal["aligned", "ridge", "lda"] = "aligned"
    head_width: NonNegativeInt = 5000

    @classmethod
    def epochs_of(cls, number: int, options: Options) -> int:
        return super().epochs_of(number, options) + 1  # for the Fisher diagonal

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        self.task_adapter = self._random_adapter("scratch")  # each task sets its values
        self.task_head_CD = torch.zeros(0, network.width, device=device)  # trained with it
        self.global_adapter = self._random_adapter("scratch")
        self.mean: Tensors | None = None  # θ_avg: mean of the task adapters so far
        self.last: Tensors | None = None  # θ_{t-1}, kept only where init="previous"
        self.weights_CD = torch.zeros(0, network.width, device=device)
        dtype = getattr(torch, self.memory_dtype)
        self.classes = ClassMemory(network.width, self.memory, self.memory_rank, dtype)
        self.solved: ClosedForm | None = None  # replaces class weights and Gaussians
        if self.head != "aligned":
            wide, seed = (network.width, self.head_width), derive(self.trainer.seed, "lift")
            self.solved = of_last_token(self.head, *wide, seed, self.memory_dtype, self.weights_CD)

    def learn(self, task: Task) -> dict[str, Any]:
        """Algorithm 1 for one task."""
        init = self._initialisation(task)  # θ_p ← θ_avg                              (Eq. 15)
        previous = init if task.number == 1 else self.global_adapter.tensors()  # θ*_{t-1}

        result = self.train_adapter(task, init)  # θ_t by SGD from θ_p             (lines 1-3)
        trained = self.task_adapter.set(result).tensors()
        self.task_head_CD = result["head"]
        mean = running_mean(self.mean, trained, task.number)  # θ_avg                 (Eq. 16)
        fused, diagnosis = self._global(task, trained, init, previous, mean)  #       (lines 4-8)

        self.global_adapter.set(fused)  # only θ*_t and θ_avg outlive the task          (line 10)
        self.mean = mean if self.init == "robust" or self.rule in NEED_MEAN else None
        self.last = trained if self.init == "previous" else None
        found = self.extend_classifier(task)  # prototypes, Gaussians, alignment        (App. B)
        return {**diagnosis, **found}

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return self.scores(self.trainer.encode(images_B3SS, self.global_adapter))

    def scores(self, feats_BD: Tensor) -> Tensor:
        """Return the classifier's scores [B, C]; there may be any number of leading axes."""
        if self.solved is not None:
            return self.solved.logits(feats_BD)
        return cosine_logits(feats_BD, self.weights_CD)

    def _initialisation(self, task: Task) -> Tensors:
        if self.init == "robust" and self.mean is not None:
            return self.mean
        if self.init == "previous" and self.last is not None:
            return self.last
        return self._random_adapter(task.index if self.init == "random" else 0).tensors()

    def train_adapter(self, task: Task, init: Tensors) -> Tensors:
        """Train the task's adapter with a cosine head over its own classes; return both."""
        self.task_adapter.set(init)
        head = nn.Parameter(init_class_weights(self.trainer, task.index, task.size))

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            feats_BD = self.trainer.encode(images_B3SS, self.task_adapter)
            return F.cross_entropy(cosine_logits(feats_BD, head), labels_B - task.first)

        trained = Group([*self.task_adapter.parameters(), head])
        schedule = Schedule(self.epochs, self.batch_size, self.lr, self.weight_decay, self.momentum)
        self.trainer.fit(task, self.task_adapter, loss, [trained], schedule)
        return {**self.task_adapter.tensors(), "head": head.detach()}

    def measure_curvature(self, task: Task) -> Tensors:
        """Measure gradient and Fisher of the training loss at θ_t, and the loss itself."""
        per_batch = self.batch_size if self.fisher == "per_batch" else None
        at_end = curvature_at(self.trainer, task, self.task_adapter, self.task_head_CD, per_batch)
        return packed_curvature(at_end)

    def recorded_steps(self) -> dict[str, str]:
        return {"train_adapter": "training", "measure_curvature": self.fisher}

    def _global(
        self, task: Task, trained: Tensors, init: Tensors, previous: Tensors, mean: Tensors
    ) -> tuple[Tensors, dict[str, Any]]:
        """Return the new global adapter θ*_t by the chosen rule, and the fusion's diagnosis."""
        copies = task.first == 0 and self.first_task == "copy"
        if self.rule != "dynamic":
            by_rule = FIXED_RULES[self.rule]
            fused = trained if copies else by_rule(trained, init, previous, mean)
            return fused, movement(fused, trained, init, previous)
        at_end = unpacked_curvature(self.measure_curvature(task))  # L'(θ_t), F(θ_t)     (line 4)
        if copies:
            return trained, movement(trained, trained, init, previous, at_end.loss)
        with self.trainer.phase("fuse"):
            fused, beta = fuse(  # β_t and θ*_t                            (Eq. 13, 14 and 3)
                trained,
                init,
                previous,
                at_end.fisher,
                at_end.gradient if self.use_gradient else None,
                self.alpha,
                self.gamma,
                self.gamma_consistent,
                self.fisher_scope,
            )
            return fused, diagnose(beta, at_end, fused, trained, init, previous)

    def extend_classifier(self, task: Task) -> dict[str, Any]:
        """Add weights and Gaussians of the new classes, then align all class weights.

        A head in closed form adds to its sums instead. Returns its choice for the diagnosis.
        """
        measured = self.global_adapter if self.stats_adapter == "global" else self.task_adapter
        feats_ND, labels_N = self.trainer.features(task.train, measured)
        check_finite(feats_ND, f"the features after task {task.number}")
        if self.solved is not None:
            with self.trainer.phase("solve"):
                return {"closed_form": self.solved.learn(feats_ND, labels_N)}
        new_CD = F.normalize(prototypes(feats_ND, labels_N, task.first, task.size), dim=1)
        self.weights_CD = torch.cat([self.weights_CD, new_CD])
        self.classes.add(feats_ND, labels_N, task.first, task.size)
        if task.first:
            self.align(task)
        return {}

    def align(self, task: Task) -> None:
        """Train all class weights on features drawn from all Gaussians."""
        if self.align_epochs:
            settings = self.align_epochs, self.align_samples, self.align_lr
            self.weights_CD = aligned(
                self.trainer, task, self.weights_CD, self.sampler(), *settings
            )

    def sampler(self) -> Sampler:
        """Return a sampler of features of every class learned so far."""
        return self.classes.sampler(self.trainer.device)

    def _random_adapter(self, purpose: str | int) -> Adapter:
        return init_adapter(
            self.trainer, purpose, self.adapter_rank, self.adapter_scale, self.adapter_dropout
        )

    def state(self) -> dict[str, Tensor]:
        adapters = {
            **prefixed("modules/global", self.global_adapter.tensors()),
            **prefixed("modules/mean", self.mean),
            **prefixed("modules/last", self.last),
        }
        if self.solved is not None:
            return {**adapters, **self.solved.state()}
        classes = prefixed("statistics/class", self.classes.tensors)
        return {**adapters, **classes, "classifier/rows": self.weights_CD}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.global_adapter.set(unprefixed(state, "modules/global"))
        self.mean = unprefixed(state, "modules/mean") or None
        self.last = unprefixed(state, "modules/last") or None
        if self.solved is not None:
            self.solved.load_state(state)
        else:
            self.classes.tensors = unprefixed(state, "statistics/class")
            self.weights_CD = state["classifier/rows"]


@dataclass(kw_only=True, eq=False)
class DAFPaper(DAF):
    """DAF read literally: the first task is fused too, statistics come from the task's adapter."""

    name = "daf-paper"
    summary = "DAF exactly as the paper's listing and appendix describe it"

    first_task: Literal["copy", "fuse"] = "fuse"
    stats_adapter: Literal["global", "task"] = "task"

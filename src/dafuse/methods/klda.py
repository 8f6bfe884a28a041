"""KLDA: a Gaussian kernel by random Fourier features, then LDA with one covariance for all classes.

Momeni, Mazumder and Liu, "Continual Learning Using a Kernel-Based Method Over Foundation Models",
arXiv 2412.15571. The last CLS token goes through random cosines whose products approximate the
kernel exp(-γ |x - y|²). In that space each class has a mean, and all share one scatter about the
means; an image belongs to the class whose mean is nearest under the scatter. These are sums too:
exact in any order.

As in the paper: 5,000 cosines, nothing trained, and no prior (every class weighs the same).

The authors set two numbers for each network; here rules do. γ is 10⁻⁴ for DINOv2 and 10⁻² for
MoCo-v3 in their later code (that of AnaCP). By default it is 1 / (8 Σ w²), with the weights w of
the network's last LayerNorm: a feature is about as long as w, and the kernel's std is twice that
length. This needs no data; the factor was chosen on training images of CIFAR-100 with the embedded
network (50 classes of 45 images). That code also adds 10⁻³ or 10⁻⁴ to the diagonal of the scatter,
summed over images. By default the penalty is chosen by leave-one-out instead, because a constant
that suits few images does not suit many. We do not know whether the paper's runs had a penalty.
KLDA-E, the mean of several such classifiers, is not included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dafuse.backbones.depths import Depths
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.heads.arrays import check_finite
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.lifting import Fourier
from dafuse.heads.sums import pooled
from dafuse.methods.contract import Method
from dafuse.methods.options import PositiveInt, Range
from dafuse.seeds import derive


@dataclass(kw_only=True, eq=False)
class KLDA(Method):
    """LDA on random Fourier features of the frozen network.

    Args:
        width: random cosines; memory grows with its square
        gamma: gamma of the kernel exp(-gamma |x - y|^2); null: from the network's last norm
        penalty: added to the diagonal of the summed scatter; null: chosen by leave-one-out
        precision: precision of the sums between lessons
    """

    name = "klda"
    summary = "KLDA: LDA on random Fourier features of a Gaussian kernel; trains nothing"
    paper = "https://arxiv.org/abs/2412.15571"
    keeps = "a count, a mean and weights for each class, one scatter for all (50 MB by default)"
    observes = True
    depths: ClassVar[Depths] = "last"
    attached: ClassVar[None] = None  # nothing is trained

    width: PositiveInt = 5000
    gamma: Annotated[float | None, Range(1e-12, 1)] = None
    penalty: Annotated[float | None, Range(1e-12, 1e12)] = None
    precision: Literal["float16", "float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        gamma = self.gamma or 1 / (8 * network.squared_length)
        nowhere = torch.zeros(0, device=device)
        seed = derive(self.trainer.seed, "fourier")
        self.lift = Fourier(network.width, self.width, gamma, seed, nowhere)
        sums = pooled(self.width, nowhere)
        self.solved = ClosedForm(
            self.lift, sums, ["lda"], self.penalty, self.precision, nowhere, absolute=True
        )

    def learn(self, task: Task) -> dict[str, Any]:
        return self.teach(task, task.train)

    def teach(
        self, task: Task, images: ImageSet, tried: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Add images of known and new classes and solve; images at `tried` choose the penalty."""
        feats_ND, labels_N = self.trainer.features(images, attached=None)
        check_finite(feats_ND, f"the features of task {task.number}")
        with self.trainer.phase("solve"):
            return self.solved.learn(feats_ND, labels_N, tried=tried)

    def observe(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        self.solved.observe(self.trainer.encode(images_B3SS, attached=None), labels_B)

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return self.solved.logits(self.trainer.encode(images_B3SS, attached=None))

    @property
    def tried(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and leave-one-out scores of the last images that were left out in turn."""
        return self.solved.tried[0], self.solved.tried_scores_NC

    def hidden(self, feats_ND: Tensor) -> Tensor:
        """Return the features that the classifier is linear in."""
        return self.lift(feats_ND)

    def drop(self, remaining: Sequence[int]) -> None:
        self.solved.drop(remaining)

    def merge(self, other: "KLDA", numbers: Sequence[int]) -> None:
        self.solved.merge(other.solved, numbers)

    def load_network(self, state: dict[str, Tensor]) -> None:
        """Load nothing: hidden features follow from the seed."""

    def state(self) -> dict[str, Tensor]:
        return self.solved.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.solved.load_state(state)

"""The part that predicts among many classes: one factor for all of them, and the class means.

    score_k(h) = (b / u) (h - m) . A^-1 (mu_k - m),    A = L L^T

`Head` keeps A^-1 (mu_k - m) for each class, which changes for every class with every lesson. Here
the system is solved for the image instead, by the factor L. So a lesson writes L and the means of
its own classes, and those of all others stay as they were written.

Familiarity is the relative distance of `heads.familiarity` over the last CLS token alone, which
needs no number for each class beyond its mean.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dafuse.heads.familiarity import BACKGROUND, FAR, LEAST_SQUARE, covariance_of
from dafuse.heads.head import Answers, Head, Numbers
from dafuse.heads.resting import spread_step
from dafuse.heads.strips import Solver, Strips
from dafuse.heads.totals import Totals

SHARED_STEP = 16  # columns of a mean that share a step (`heads.resting`)


class OwnClasses(NamedTuple):
    """The class of each image, and how many images that class has."""

    labels_N: np.ndarray
    count_N: np.ndarray


@dataclass(frozen=True)
class TokenFamiliarity:
    """Familiarity by the last token: how much nearer to a class mean than to all images."""

    centre_D: np.ndarray
    within_DD: np.ndarray  # makes columns independent within classes
    total_DD: np.ndarray  # and over all images
    start: int
    unit: float  # the likeness of a class mean, on average
    far: float  # weight of the squared distance over the squared length

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + len(self.centre_D))

    def near(self, means_CD: np.ndarray) -> np.ndarray:
        """Return the class means as `__call__` compares them."""
        return (means_CD - self.centre_D) @ self.within_DD

    def __call__(
        self, feats_NF: np.ndarray, near_CD: np.ndarray, own: "OwnClasses | None" = None
    ) -> np.ndarray:
        """Return familiarity [N]; of images that are left out of their ``own`` classes, if given.

        Without one of n images, a class mean is n / (n - 1) times as far from it.
        """
        token_ND = feats_NF[:, self.columns]
        inside_ND = (token_ND - self.centre_D) @ self.within_DD
        nearest_NC = 2 * inside_ND @ near_CD.T
        nearest_NC -= (near_CD**2).sum(1)
        squares_N = (inside_ND**2).sum(1)
        if own is not None:
            at = np.arange(len(own.labels_N)), own.labels_N
            far_N = squares_N - nearest_NC[at]
            nearest_NC[at] = squares_N - far_N * (own.count_N / (own.count_N - 1)) ** 2
        nearest_N = nearest_NC.max(1)
        distance_N = (((token_ND - self.centre_D) @ self.total_DD) ** 2).sum(1)
        background_N = squares_N - distance_N
        length_N = np.maximum((token_ND**2).sum(1), LEAST_SQUARE)
        likeness_N = (nearest_N - BACKGROUND * background_N) / self.unit
        return likeness_N - self.far * distance_N / length_N

    def arrays(self) -> dict[str, np.ndarray]:
        return {"centre": self.centre_D, "within": self.within_DD, "total": self.total_DD}

    @classmethod
    def from_arrays(
        cls, arrays: dict[str, np.ndarray], numbers: Numbers, width: int
    ) -> "TokenFamiliarity | None":
        """Read it for features of this width; raise `ValueError` if it does not fit."""
        if "within" not in arrays:
            return None
        centre_D, within_DD, total_DD = (arrays[name] for name in ("centre", "within", "total"))
        size, start = len(centre_D), int(numbers["token_start"])
        if within_DD.shape != (size, size) or total_DD.shape != (size, size):
            raise ValueError("the arrays of familiarity do not fit together")
        if not 0 <= start <= width - size:
            raise ValueError("familiarity has other columns than the class means")
        unit, far = float(numbers["token_unit"]), float(numbers["token_far"])
        return cls(centre_D, within_DD, total_DD, start, unit, far)


def token_familiarity(
    totals: Totals, classes: int, images: float, columns: slice
) -> TokenFamiliarity:
    """Compute it from the totals over all classes."""
    centre_D = totals.sum_M[columns] / classes
    within_DD = totals.scatter.block(columns) / images
    between_DD = totals.between(classes, columns) / classes
    whiten_DD, usual = covariance_of(within_DD + between_DD, centre_D, images)
    inside_DD, _ = covariance_of(within_DD, centre_D, images, least=0.0)
    own = float(np.einsum("de,df,fe->", inside_DD, between_DD, inside_DD, optimize=True))
    in_all = float(np.einsum("de,df,fe->", whiten_DD, between_DD, whiten_DD, optimize=True))
    unit = (1 - BACKGROUND) * own + BACKGROUND * in_all
    return TokenFamiliarity(
        centre_D.astype(np.float32),
        inside_DD.astype(np.float32),
        whiten_DD.astype(np.float32),
        columns.start,
        unit if unit > 0 else 1.0,
        FAR / usual,
    )


@dataclass(frozen=True)
class FactoredHead(Head):
    """A ridge classifier of many classes. ``weights_CF`` are class means, in steps."""

    weights_step: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    factor: Strips = field(default_factory=lambda: Strips.zeros(0))
    centre_F: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    scale_F: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # of features
    gain: float = 1.0  # b / u
    token: TokenFamiliarity | None = None

    @cached_property
    def weights_FC(self) -> np.ndarray:
        """The class means in float32, for products."""
        return awake_means(self.weights_CF, self.weights_step).T

    @cached_property
    def near_CD(self) -> np.ndarray:
        assert self.token is not None
        return self.token.near(awake_means(self.weights_CF, self.weights_step, self.token.columns))

    @cached_property
    def _solver(self) -> Solver:
        return Solver(self.factor)

    def answers(self, feats_NF: np.ndarray) -> Answers:
        scores_NC = self.scores(feats_NF)
        if self.token is None:
            return Answers(self.probabilities(scores_NC), self.energies(scores_NC))
        return Answers(self.probabilities(scores_NC), self.token(feats_NF, self.near_CD))

    def scores(self, feats_NF: np.ndarray) -> np.ndarray:
        solved_NF = self.solved(feats_NF)
        scores_NC = solved_NF @ self.weights_FC
        scores_NC -= (solved_NF @ self.centre_F)[:, None]
        return scores_NC

    def solved(self, feats_NF: np.ndarray) -> np.ndarray:
        """Return (b / u) A^-1 (h - m) of each image, [N, F]."""
        apart_NF = feats_NF * self.scale_F - self.centre_F
        return self.gain * self._solver(apart_NF.T).T

    def plain(self) -> Head:
        """Return a head that computes the same scores by a weight vector for each class."""
        solver = Solver(self.factor.copy())
        weights_CF, step = np.empty(self.weights_CF.shape, np.float32), 1024
        for start in range(0, self.classes, step):
            part = slice(start, start + step)
            means_CF = awake_means(self.weights_CF[part], self.weights_step[part])
            apart_FC = (means_CF - self.centre_F).T.astype(np.float64)
            weights_CF[part] = self.gain * solver(apart_FC).T
        bias_C = -(weights_CF @ self.centre_F)
        known = {name: getattr(self, name) for name in ("bend", "sharpness", "energy", "threshold")}
        return Head(weights_CF * self.scale_F, bias_C, **known)

    def arrays(self) -> dict[str, np.ndarray]:
        token = {} if self.token is None else self.token.arrays()
        return {
            "weights": self.weights_CF,
            "weights_step": self.weights_step,
            "bias": self.bias_C,
            "factor": self.factor.flat,
            "middle": self.centre_F,
            "scale": self.scale_F,
            **token,
        }

    def numbers(self) -> Numbers:
        found = {**super().numbers(), "gain": self.gain}
        if self.token is None:
            return found
        token = {name: float(getattr(self.token, name)) for name in ("start", "unit", "far")}
        return found | {f"token_{name}": value for name, value in token.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], numbers: Numbers) -> "FactoredHead":
        """Read the arrays and numbers; raise `ValueError` if they are no classifier."""
        means_CF, steps, middle_F = arrays["weights"], arrays["weights_step"], arrays["middle"]
        width = len(middle_F)
        if means_CF.ndim != 2 or means_CF.shape != (len(arrays["bias"]), width):
            raise ValueError("there is not one mean for each class")
        if steps.shape != (len(means_CF), -(-width // SHARED_STEP)):
            raise ValueError("there are not the right steps for each class mean")
        if arrays["scale"].shape != (width,) or not numbers["sharpness"] > 0:
            raise ValueError("the calibration is out of range")
        return cls(
            means_CF,
            arrays["bias"],
            bend=float(numbers["bend"]),
            sharpness=float(numbers["sharpness"]),
            energy=float(numbers["energy"]),
            threshold=float(numbers["threshold"]),
            weights_step=steps,
            factor=Strips(arrays["factor"], width),
            centre_F=middle_F,
            scale_F=arrays["scale"],
            gain=float(numbers["gain"]),
            token=TokenFamiliarity.from_arrays(arrays, numbers, width),
        )


def head_from(arrays: dict[str, np.ndarray], numbers: Numbers) -> Head:
    """Read a classifier: of a weight vector for each class, or of one factor for all."""
    return (FactoredHead if "factor" in arrays else Head).from_arrays(arrays, numbers)


def awake_means(
    means_CM: np.ndarray, steps: np.ndarray, columns: slice | None = None
) -> np.ndarray:
    """Return class means, or some columns of them, in float32 from whole numbers of steps."""
    if columns is not None:
        found: np.ndarray = means_CM[:, columns].astype(np.float32)
        shared = np.arange(means_CM.shape[1])[columns] // SHARED_STEP
        return found * steps[:, shared]
    awake_CM = means_CM.astype(np.float32)
    whole = means_CM.shape[1] // SHARED_STEP * SHARED_STEP
    blocks = awake_CM[:, :whole].reshape(len(means_CM), -1, SHARED_STEP)
    if whole == means_CM.shape[1]:
        blocks *= steps[:, :, None]
        return awake_CM
    wide: np.ndarray = spread_step(steps, SHARED_STEP, means_CM.shape[1])
    return (awake_CM * wide).astype(np.float32)

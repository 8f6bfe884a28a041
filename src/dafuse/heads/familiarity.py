"""The familiarity of an image to a ridge classifier, from its scores and its last CLS token.

With the scores s of an image, P the scores of the class means, one row each, and K classes,

    g = K s (I - P)^-1,    own_k = K (P (I - P)^-1)_kk

g_k is the product of the image and class mean k, both centred, through the inverse of the scatter
about the class means; own_k is that of the class mean with itself. Only s and P are needed, because
the regression's scores are s = g (K I + K P (I - P)^-1)^-1. The relative distance of Ren et al.
(arXiv 2106.09022), to the nearest class minus that to the centre of all images, becomes

    likeness = max_k (2 g_k - own_k) - BACKGROUND g . s,    in units of a class mean's likeness

These C numbers do not show an image that is unlike everything taught. That shows best in the last
CLS token: its squared distance from the centre of all images, in units of their covariance, divided
by its squared length, since long tokens are far from everything. The familiarity is the likeness
minus `FAR` times that ratio over its usual value.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dafuse.heads.arrays import Array, add_to_diagonal, exact, to_numpy
from dafuse.heads.factors import factor_of_square
from dafuse.heads.resting import in_steps
from dafuse.heads.sums import ClassSums

BACKGROUND = 0.7  # at 1, likeness is the ratio of two Gaussian likelihoods
FAR = 2.0
SHRINK, SHRINK_FEW = 0.1, 0.5  # of the covariance: always, and per column for each image
MOST_DIRECTIONS = 512  # of the matrix (I - P)^-1; it is cut beyond, with thousands of classes
NUMBERS = ("level", "pull", "start", "far")
LEAST_SQUARE = 1e-12  # min squared length of a token
PREFIX = "familiar_"  # begins the names of these numbers, which stand among others


@dataclass(frozen=True)
class Familiarity:
    """The numbers that compute familiarity: plain arrays, beside the weights of a `Head`."""

    mix_CR: np.ndarray  # float16; level s + (s mix) mix^T is 2 g in units of the likeness
    own_C: np.ndarray  # float32
    level: float
    pull: float  # weight of the background
    centre_D: np.ndarray  # float32; over the columns from `start` on
    whiten_DD: np.ndarray  # int8, upper triangular; makes centred columns independent
    step_D: np.ndarray  # float32; the step of each column of `whiten_DD`
    start: int
    far: float  # weight of the squared distance over the squared length

    def __call__(self, scores_NC: np.ndarray, feats_NF: np.ndarray) -> np.ndarray:
        """Return familiarity [N]: large for images like those of some class."""
        return self.likeness(scores_NC) - self.farness(feats_NF, self.distance(feats_NF))

    def likeness(self, scores_NC: np.ndarray) -> np.ndarray:
        mixed_NC = (scores_NC @ self.mixing_CR) @ self.mixing_CR.T
        products_NC = self.level * scores_NC + mixed_NC
        nearest_N = (products_NC - self.own_C).max(-1)
        return nearest_N - self.pull * (scores_NC * products_NC).sum(-1)

    def distance(self, feats_NF: np.ndarray) -> np.ndarray:
        """Return the squared distance of the last CLS token from the centre."""
        apart_ND = feats_NF[..., self.columns] - self.centre_D
        return ((apart_ND @ self.whitening_DD) ** 2).sum(-1)

    def farness(self, feats_NF: np.ndarray, distance_N: np.ndarray) -> np.ndarray:
        """Return the distance over the squared length [N], about `FAR` for known classes."""
        squares_N = (feats_NF[..., self.columns] ** 2).sum(-1)
        return self.far * distance_N / np.maximum(squares_N, LEAST_SQUARE)

    @cached_property
    def whitening_DD(self) -> np.ndarray:
        """`whiten_DD` in float32, for products."""
        return self.whiten_DD * self.step_D

    @cached_property
    def mixing_CR(self) -> np.ndarray:
        """`mix_CR` in float32, for products."""
        return self.mix_CR.astype(np.float32)

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + len(self.centre_D))

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "mix": self.mix_CR,
            "own": self.own_C,
            "centre": self.centre_D,
            "whiten": self.whiten_DD[np.triu_indices(len(self.step_D))],  # the rest is zero
            "whiten_step": self.step_D,
        }

    def numbers(self) -> dict[str, float]:
        return {PREFIX + name: float(getattr(self, name)) for name in NUMBERS}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], numbers: dict[str, float]) -> "Familiarity":
        """Read the arrays and numbers; raise `ValueError` if they do not fit together."""
        names = ("mix", "own", "centre", "whiten", "whiten_step")
        mix_CR, own_C, centre_D, packed, step_D = (arrays[name] for name in names)
        width = len(centre_D)
        upper = np.triu_indices(width)
        whole = packed.shape == upper[0].shape and step_D.shape == (width,)
        if mix_CR.shape[:1] != own_C.shape or not whole:
            raise ValueError("the arrays of familiarity do not fit together")
        if numbers[PREFIX + "start"] < 0:
            raise ValueError("familiarity starts at a negative column")
        whiten_DD = np.zeros((width, width), packed.dtype)
        whiten_DD[upper] = packed
        level, pull, start, far = (float(numbers[PREFIX + name]) for name in NUMBERS)
        return cls(mix_CR, own_C, level, pull, centre_D, whiten_DD, step_D, int(start), far)


def familiarity_of(
    sums: ClassSums, of_means_CC: Array, unit: float, regression: bool, columns: slice
) -> Familiarity:
    """Compute the numbers from the sums and the scores of the class means, divided by the unit.

    Scores without ``regression`` are those of LDA: 2 g - own, up to a factor. ``columns`` are those
    of the last CLS token.
    """
    scores_CC = to_numpy(exact(of_means_CC))
    mix_CR, twice, pull = np.zeros((len(scores_CC), 0)), 1.0, 0.0
    if regression:
        mix_CR, twice, pull = _root_of_inverse(unit * scores_CC), 2 * unit, BACKGROUND * unit / 2
    own_C = (mix_CR**2).sum(1)
    centre_D, whiten_DD, usual = _covariance(sums, columns)
    raw = Familiarity(
        mix_CR * twice**0.5,
        own_C,
        twice,
        pull,
        centre_D.astype(np.float32),
        *in_steps(whiten_DD, "int8"),
        columns.start,
        FAR / usual,
    )
    of_a_mean = float(raw.likeness(scores_CC).mean()) if len(scores_CC) > 1 else 1.0
    unit_of_it = of_a_mean if of_a_mean > 0 else 1.0
    return replace(
        raw,
        mix_CR=(raw.mix_CR / unit_of_it**0.5).astype(np.float16),
        own_C=(own_C / unit_of_it).astype(np.float32),
        level=twice / unit_of_it,
    )


def left_out(
    made: Familiarity, scores_NC: np.ndarray, feats_NF: np.ndarray, sums: ClassSums
) -> np.ndarray:
    """Return the leave-one-out familiarity [N] of images, given their leave-one-out scores.

    Without one of N images, it is c = N / (N - 1) times as far from the centre, the sum of squares
    loses c x x^T, and a squared distance d becomes c d / (1 - c d / N). What class records keep as
    a diagonal belongs to no image, so d / N counts only for the share that is not diagonal.
    """
    moved_N = made.distance(feats_NF) * sums.images / max(1.0, sums.images - 1)
    own_N = moved_N / sums.images * _share_with_directions(sums, made.columns)
    without_N = moved_N / np.maximum(1 - own_N, 0.1)
    return made.likeness(scores_NC) - made.farness(feats_NF, without_N)


def _root_of_inverse(scores_CC: np.ndarray) -> np.ndarray:
    """Return E [C, R] with I + E E^T = (I - P)^-1, for the scores P of the class means."""
    values_C, vectors_CC = np.linalg.eigh((scores_CC + scores_CC.T) / 2)
    values_C, vectors_CC = values_C[-MOST_DIRECTIONS:], vectors_CC[:, -MOST_DIRECTIONS:]
    inside = values_C > 1e-9
    shares_R = np.minimum(values_C[inside], 1 - 1e-6)
    return vectors_CC[:, inside] * (shares_R / (1 - shares_R)) ** 0.5


def _covariance(sums: ClassSums, columns: slice) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the centre in these columns, a map that makes them independent, and the usual ratio.

    With few images, the covariance is shrunk towards equal variances.
    """
    images, means_CD = sums.images, to_numpy(sums.means_CM[:, columns])
    centre_D = means_CD.mean(0)
    apart_CD = means_CD - centre_D
    square_DD = to_numpy(sums.scatter.part(columns)) / images
    square_DD = square_DD + apart_CD.T @ apart_CD / len(apart_CD)
    inverse_DD, usual = covariance_of(square_DD, centre_D, images)
    return centre_D, inverse_DD, usual


def covariance_of(
    square_DD: np.ndarray, centre_D: np.ndarray, images: float, least: float = SHRINK
) -> tuple[np.ndarray, float]:
    """Return a map that makes columns of this covariance independent, and the usual ratio."""
    width = len(centre_D)
    shrink = (least + SHRINK_FEW * width / images) * (float(square_DD.trace()) / width or 1.0)
    inverse_DD = np.linalg.inv(factor_of_square(add_to_diagonal(square_DD, shrink)))
    in_use = width - shrink * float((inverse_DD**2).sum())  # tr T (T + p I)^-1
    usual = max(in_use / max(1 - in_use / images, 0.1), 1.0)
    length = float(square_DD.trace() + (centre_D**2).sum())  # mean squared length
    return inverse_DD, usual / max(length, LEAST_SQUARE)


def _share_with_directions(sums: ClassSums, columns: slice) -> float:
    """Return the share of the variance of these columns that is not kept as a diagonal."""
    diagonal_M = sums.scatter.diagonal()
    if diagonal_M is None:
        return 1.0
    means_CD = sums.means_CM[:, columns]
    between = float(((means_CD - means_CD.mean(0)) ** 2).sum()) * sums.images / sums.classes
    total = float(sums.scatter.part(columns).trace()) + between
    return 1 - float(diagonal_M[columns].sum()) / total if total > 0 else 1.0

"""Linear classifiers solved from sums over images, and their leave-one-out scores.

With the class means mu_c, their mean m, c_k = mu_k - m, C = [c_1 ... c_K], the scatter S about the
means, and b = N / K images per class on average:

    ridge:  W = b (S + b C C^T + p I)^-1 C,        score_k(h) = (h - m) . w_k
    LDA:    W = N (S + p I)^-1 C,                  score_k(h) = (h - m) . w_k - c_k . w_k / 2

If all classes have equally many images, ridge is the regression from features to one-hot targets
with an intercept that is not penalised. Otherwise class means still count alike, however many
images they have, and the scatter is that of all images. As p grows, LDA becomes the nearest class
mean, and ridge the largest product with a centred class mean. A penalty is a share of the mean
diagonal of the matrix that p I is added to.

**Leave-one-out.** Without image i of class c (n images), with d = h_i - mu_c and q = 1 / (n - 1),
the class mean moves by -q d and m by -q d / K. So with U = [d, c_c]

    S' + b C' C'^T = S + b C C^T - U B U^T,    B = [[n q - b q^2 (1 - 1/K), b q], [b q, 0]]

and h_i - m' = U t with t = (1 + q / K, 1). By Woodbury's identity, with A = S + b C C^T + p I,

    (h_i - m')^T A'^-1 y = t^T (I - U^T A^-1 U B)^-1 U^T A^-1 y

for any y. So an image needs only the products of d and the class means through A^-1. LDA is the
same with b = 0. One solution scores every image as if it had never been taught; b, N and the
penalty stay those of all images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dafuse.heads.arrays import (
    Array,
    add_to_diagonal,
    exact,
    from_numpy,
    library,
    to_numpy,
    zeros,
)
from dafuse.heads.factors import factor_of_square, solved_backward, solved_forward
from dafuse.heads.sums import ClassSums

Kind = Literal["ridge", "lda"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPAN_PAYS = 1 / 3  # eigenvectors of more rows take longer than a few Cholesky factorisations
FEW_ROWS = 600  # up to so many, factorising their products takes less than a tenth of a second
FEW_CLASSES = 1000  # up to so many, products among all class means cost next to nothing
IN_SPAN = 1e-9  # a smaller share of a vector's square is rounding


@dataclass
class Linear:
    """A classifier: scores are ``hidden @ weights + bias``."""

    weights_MC: Array
    bias_C: Array

    def scores(self, hidden_NM: Array) -> Array:
        return hidden_NM @ self.weights_MC + self.bias_C


class System:
    """The linear system of one kind of head, solved for any penalty.

    With few images, everything happens in the space that they span (`_InTheSpan`), where one
    eigendecomposition serves every penalty.

    An emphasis e solves the system for features h e, column by column; their sums follow from the
    given ones, and the classifier applies to h again. Emphasis 2 quarters a column's penalty.
    """

    def __init__(self, sums: ClassSums, kind: Kind, emphasis_M: Array | None = None) -> None:
        self.kind, self.classes, self.images = kind, sums.classes, sums.images
        self.counts_C, self.means_CM = sums.counts_C, sums.means_CM
        self._emphasis_M = emphasis_M
        self.centre_M = sums.means_CM.mean(0)
        apart_CM = sums.means_CM - self.centre_M
        self.centred_CM = self._emphasised(apart_CM)
        self.between = self.images / self.classes if kind == "ridge" else 0.0  # b
        rows = sums.scatter.rows()
        between_CM = self.between**0.5 * apart_CM if self.between else apart_CM[:0]
        diagonal_M = sums.scatter.diagonal()
        self._inverse: _InTheSpan | _DiagonalAndRows | _Square
        if rows is not None and len(rows) + self.classes < SPAN_PAYS * sums.width:
            spanning = self._emphasised(library(rows).concatenate([rows, between_CM]))
            if diagonal_M is None:
                self._inverse = _InTheSpan(spanning)
            else:
                twice_M = self._emphasised(self._emphasised(diagonal_M))
                self._inverse = _DiagonalAndRows(twice_M, spanning)
        else:
            square_MM = self._emphasised(sums.scatter.square(between_CM))
            if emphasis_M is not None:
                square_MM = square_MM * emphasis_M[:, None]
            self._inverse = _Square(square_MM)
        self.penalties_are_cheap = self._inverse.penalties_are_cheap
        # the mean diagonal of the matrix that the penalty is added to
        self.scale = self._inverse.mean_diagonal or float((self.centred_CM**2).mean()) or 1.0

    def head(self, penalty: float) -> Linear:
        """Return the classifier at this penalty."""
        weights_MC = self._inverse.solve(self.centred_CM.T, penalty * self.scale)
        own_C = (self.centred_CM.T * weights_MC).sum(0)
        weights_MC = self._emphasised(weights_MC.T).T
        if self.kind == "ridge":
            weights_MC = self.between * weights_MC
            return Linear(weights_MC, -self.centre_M @ weights_MC)
        weights_MC = self.images * weights_MC
        return Linear(weights_MC, -self.centre_M @ weights_MC - self.images * own_C / 2)

    def left_out(
        self, hidden_NM: Array, labels_N: Array, penalties: Sequence[float]
    ) -> Iterator[Array]:
        """Return, for each penalty, the leave-one-out scores [N, C] of these images.

        Every image must be in the sums, and its class must have another image.
        """
        apart_NM = self._emphasised(exact(hidden_NM) - self.means_CM[labels_N])
        absolute = [penalty * self.scale for penalty in penalties]
        own: Any = slice(None)
        if self.classes <= FEW_CLASSES:
            rows_N = labels_N
        else:
            own, rows = np.unique(to_numpy(labels_N), return_inverse=True)
            rows_N = from_numpy(rows, labels_N)
        for products in self._inverse.products(apart_NM, self.centred_CM, own, absolute):
            yield self._rescored(products, labels_N, rows_N)

    def _emphasised(self, rows_KM: Array) -> Array:
        return rows_KM if self._emphasis_M is None else rows_KM * self._emphasis_M

    def _rescored(self, products: "Products", labels_N: Array, rows_N: Array) -> Array:
        solved = rescored(products, labels_N, rows_N, self.counts_C[labels_N], self.between)
        if self.kind == "ridge":
            return self.between * solved.scores_NC
        squares_NC = products.squares_C[None] + solved.squares_NC
        return self.images * (solved.scores_NC - squares_NC / 2)


class Products(NamedTuple):
    """Products through A^-1: of images' distances d from their class means, and of the means c."""

    own_N: Array  # d . A^-1 d
    to_means_NC: Array  # d . A^-1 c_k
    among_OC: Array  # c_j . A^-1 c_k, where j are the classes of these images, or all
    squares_C: Array  # c_k . A^-1 c_k


class Rescored(NamedTuple):
    """The scores by leave-one-out, and what leaving out adds to c_k . A^-1 c_k."""

    scores_NC: Array  # without the factor b or N
    squares_NC: Array  # of LDA alone


def rescored(
    products: Products, labels_N: Array, rows_N: Array, count_N: Array, between: float
) -> Rescored:
    """Leave each image out, by the formulas at the top of this file.

    ``rows_N`` says which row of the products among class means is of an image's own class.
    """
    own_N, to_means_NC, among_OC, _ = products
    xp, classes = library(own_N), to_means_NC.shape[1]
    index_N = np.arange(len(own_N))
    q_N = 1 / (count_N - 1)
    mean_NC = among_OC[rows_N]  # c_c . A^-1 c_k of the image's own class c
    cross_N, mean_N = to_means_NC[index_N, labels_N], mean_NC[index_N, labels_N]
    # of I - g B, with g = U^T A^-1 U = [[own, cross], [cross, mean]]
    b11_N = count_N * q_N - between * q_N**2 * (1 - 1 / classes)
    b12_N = between * q_N
    m11_N = 1 - own_N * b11_N - cross_N * b12_N
    m12_N = -own_N * b12_N
    m21_N = -cross_N * b11_N - mean_N * b12_N
    m22_N = 1 - cross_N * b12_N
    determinant_N = m11_N * m22_N - m12_N * m21_N
    determinant_N = xp.where(abs(determinant_N) < 1e-12, 1e-12 + 0 * own_N, determinant_N)
    # U^T A^-1 y for y = c_k' = c_k + e_k d, where e_k = q / K, less q for the own class
    shift_NC = zeros(own_N, len(own_N), classes) + (q_N / classes)[:, None]
    shift_NC[index_N, labels_N] = shift_NC[index_N, labels_N] - q_N
    first_NC = to_means_NC + shift_NC * own_N[:, None]
    second_NC = mean_NC + shift_NC * cross_N[:, None]
    # (I - g B)^-1 times these
    u1_NC = (m22_N[:, None] * first_NC - m12_N[:, None] * second_NC) / determinant_N[:, None]
    u2_NC = (m11_N[:, None] * second_NC - m21_N[:, None] * first_NC) / determinant_N[:, None]
    scores_NC = (1 + q_N / classes)[:, None] * u1_NC + u2_NC
    if between:
        return Rescored(scores_NC, scores_NC[:, :0])
    # c_k' . A'^-1 c_k', where only the first entry of B is not zero
    squares_NC = 2 * shift_NC * to_means_NC
    squares_NC = squares_NC + shift_NC**2 * own_N[:, None]
    return Rescored(scores_NC, squares_NC + first_NC * b11_N[:, None] * u1_NC)


class _Square:
    """(A + p I)^-1 = U^-1 U^-T for a full matrix A. Keeps the last penalty's factor U."""

    penalties_are_cheap = False

    def __init__(self, square_MM: Array) -> None:
        self._square_MM = square_MM
        self._last: tuple[float, Array] | None = None
        self.mean_diagonal = float(square_MM.trace()) / len(square_MM)

    def solve(self, columns_MK: Array, penalty: float) -> Array:
        upper_MM = self._factor(penalty)
        return solved_backward(upper_MM, solved_forward(upper_MM, columns_MK))

    def products(
        self, apart_NM: Array, centred_CM: Array, own: Any, penalties: Sequence[float]
    ) -> Iterator[Products]:
        both_MK = library(apart_NM).concatenate([apart_NM, centred_CM]).T
        for penalty in penalties:
            half_MK = solved_forward(self._factor(penalty), both_MK)
            half_MN, half_MC = half_MK[:, : len(apart_NM)], half_MK[:, len(apart_NM) :]
            among_OC = half_MC[:, own].T @ half_MC
            squares_C = (half_MC**2).sum(0)
            yield Products((half_MN**2).sum(0), half_MN.T @ half_MC, among_OC, squares_C)

    def _factor(self, penalty: float) -> Array:
        if self._last is None or self._last[0] != penalty:
            self._last = None  # frees the memory of the old factor first
            self._last = penalty, factor_of_square(add_to_diagonal(self._square_MM, penalty))
        return self._last[1]


class _DiagonalAndRows:
    """(D + p I + Z^T Z)^-1 for a diagonal D and few rows Z, by Woodbury's identity.

    With E = D + p I and G = I + Z E^-1 Z^T it is E^-1 - E^-1 Z^T G^-1 Z E^-1.
    """

    def __init__(self, diagonal_M: Array, rows_KM: Array) -> None:
        self._diagonal_M, self._rows_KM = diagonal_M, rows_KM
        self.mean_diagonal = float(diagonal_M.mean() + (rows_KM**2).sum() / len(diagonal_M))
        self.penalties_are_cheap = len(rows_KM) <= FEW_ROWS

    def solve(self, columns_MK: Array, penalty: float) -> Array:
        scaled_MK = columns_MK / (self._diagonal_M + penalty)[:, None]
        upper_KK = self._factor(penalty)
        inner_KK = solved_backward(upper_KK, solved_forward(upper_KK, self._rows_KM @ scaled_MK))
        back_MK = self._rows_KM.T @ inner_KK
        return scaled_MK - back_MK / (self._diagonal_M + penalty)[:, None]

    def products(
        self, apart_NM: Array, centred_CM: Array, own: Any, penalties: Sequence[float]
    ) -> Iterator[Products]:
        for penalty in penalties:
            scale_M, upper_KK = self._diagonal_M + penalty, self._factor(penalty)
            scaled_NM, scaled_CM = apart_NM / scale_M, centred_CM / scale_M
            half_KN = solved_forward(upper_KK, self._rows_KM @ scaled_NM.T)
            half_KC = solved_forward(upper_KK, self._rows_KM @ scaled_CM.T)
            yield Products(
                (apart_NM * scaled_NM).sum(1) - (half_KN**2).sum(0),
                scaled_NM @ centred_CM.T - half_KN.T @ half_KC,
                scaled_CM[own] @ centred_CM.T - half_KC[:, own].T @ half_KC,
                (scaled_CM * centred_CM).sum(1) - (half_KC**2).sum(0),
            )

    def _factor(self, penalty: float) -> Array:
        """Return the upper factor of G."""
        scaled_KM = self._rows_KM / (self._diagonal_M + penalty)
        return factor_of_square(add_to_diagonal(scaled_KM @ self._rows_KM.T, 1.0))


class _InTheSpan:
    """(Z^T Z + p I)^-1 for few rows Z: x = (y - Z^T (Z Z^T + p I)^-1 Z y) / p."""

    penalties_are_cheap = True

    def __init__(self, rows_KM: Array) -> None:
        self._rows_KM = rows_KM
        self.mean_diagonal = float((rows_KM**2).sum()) / rows_KM.shape[1]
        values_K, vectors_KK = library(rows_KM).linalg.eigh(rows_KM @ rows_KM.T)
        self._values_K, self._vectors_KK = values_K * (values_K > 0), vectors_KK

    def solve(self, columns_MK: Array, penalty: float) -> Array:
        along_KK = self._vectors_KK.T @ (self._rows_KM @ columns_MK)
        inner_KK = self._vectors_KK @ (along_KK / (self._values_K + penalty)[:, None])
        return (columns_MK - self._rows_KM.T @ inner_KK) / penalty

    def products(
        self, apart_NM: Array, centred_CM: Array, own: Any, penalties: Sequence[float]
    ) -> Iterator[Products]:
        """Return the products, in the eigenvectors' coordinates, where a penalty costs a division.

        The part of a vector outside the span is divided by the penalty alone.
        """
        xp = library(apart_NM)
        inside = self._values_K > IN_SPAN * self._values_K[-1]
        values_K = self._values_K[inside]
        basis_KM = (self._vectors_KK[:, inside] / values_K**0.5).T @ self._rows_KM
        along_NK, along_CK = apart_NM @ basis_KM.T, centred_CM @ basis_KM.T
        beyond_NM, beyond_CM = apart_NM - along_NK @ basis_KM, centred_CM - along_CK @ basis_KM
        rest_N, rest_C = (beyond_NM**2).sum(1), (beyond_CM**2).sum(1)
        rest_OC = beyond_CM[own] @ beyond_CM.T
        rest_NC = beyond_NM @ beyond_CM.T
        out_N = rest_N > IN_SPAN * (apart_NM**2).sum(1)
        out_C = rest_C > IN_SPAN * (centred_CM**2).sum(1)
        rest_N = xp.where(out_N, rest_N, 0 * rest_N)
        rest_NC = xp.where(out_N[:, None] & out_C[None], rest_NC, 0 * rest_NC)
        rest_OC = xp.where(out_C[own][:, None] & out_C[None], rest_OC, 0 * rest_OC)
        rest_C = xp.where(out_C, rest_C, 0 * rest_C)
        for penalty in penalties:
            share_CK = along_CK / (values_K + penalty)
            yield Products(
                (along_NK**2 / (values_K + penalty)).sum(1) + rest_N / penalty,
                along_NK @ share_CK.T + rest_NC / penalty,
                along_CK[own] @ share_CK.T + rest_OC / penalty,
                (along_CK * share_CK).sum(1) + rest_C / penalty,
            )

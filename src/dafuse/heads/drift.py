"""Old sums under a changed network: a linear map of features, fitted to new images.

A lesson's images pass through the old and the new network and give centred features H_o and H_n.
The movement of a feature is regressed on its old place,

    B = H_o^T (H_o H_o^T + d I)^-1 (H_n - H_o),    T = I + B,

and the sums of old images move along: means by T, the scatter to T^T S T. If the drift is linear
and the lesson's images span the features, the map is exact as d goes to zero.
"""

from dafuse.heads.arrays import Array, add_to_diagonal, exact, solve
from dafuse.heads.sums import ClassSums

PENALTY = 0.3  # d, as a share of the mean diagonal of H_o H_o^T


def follow(sums: ClassSums, before_NM: Array, after_NM: Array, penalty: float = PENALTY) -> None:
    """Move the sums as these images' features moved; the images themselves are not in the sums."""
    before_NM, after_NM = exact(before_NM), exact(after_NM)
    old_M, new_M = before_NM.mean(0), after_NM.mean(0)
    from_NM, moved_NM = before_NM - old_M, (after_NM - new_M) - (before_NM - old_M)
    products_NN = from_NM @ from_NM.T
    scale = float(products_NN.trace()) / len(products_NN)
    if scale <= 0:
        sums.means_CM = sums.means_CM + (new_M - old_M)
        return
    inner_NM = solve(add_to_diagonal(products_NN, penalty * scale), moved_NM)

    def mapped(rows_KM: Array) -> Array:
        return rows_KM + (rows_KM @ from_NM.T) @ inner_NM

    sums.means_CM = mapped(sums.means_CM - old_M) + new_M
    sums.scatter.follow(mapped)

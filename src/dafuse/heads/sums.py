"""Sums over images: a count and a mean for each class, and the scatter about the means.

    S = sum over images of (h - mu)(h - mu)^T,    mu the mean of the image's class

Sums add up over batches, lessons and machines, in any order. More images of a known class move its
mean, and the scatter accounts for that: two parts of n1 and n2 images whose means are d apart have
together S1 + S2 + n1 n2 / (n1 + n2) d d^T. Every head of `heads.closed_form` is solved from these.

Everything works on numpy arrays and on torch tensors (`heads.arrays`), in float64.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np

from dafuse.heads.arrays import (
    Array,
    add_to_diagonal,
    exact,
    library,
    one_hot,
    solve,
    to_numpy,
    zeros,
)
from dafuse.heads.scatter import ClasswiseScatter, PooledScatter, RecordsAndImages, Scatter

CHUNK = 4096  # images whose hidden features are held in float64 at once
PENALTY = 0.3  # d of a linear drift, as a share of the mean diagonal of H_o H_o^T


class ClassSums:
    """Counts, means and scatter of the classes 0..C-1; a class is added with its first image."""

    def __init__(self, counts_C: Array, means_CM: Array, scatter: Scatter) -> None:
        self.counts_C, self.means_CM, self.scatter = counts_C, means_CM, scatter

    @property
    def images(self) -> float:
        return float(self.counts_C.sum())

    @property
    def typical(self) -> float:
        """The number of images if every class had the geometric mean of the counts."""
        counts_C = _at_least_one(to_numpy(self.counts_C))
        return len(counts_C) * float(np.exp(np.log(counts_C).mean())) if len(counts_C) else 0.0

    @property
    def cut(self) -> bool:
        """Tell whether class records hold less of their images than was added."""
        return isinstance(self.scatter, ClasswiseScatter)

    @property
    def classes(self) -> int:
        return len(self.counts_C)

    @property
    def width(self) -> int:
        return int(self.means_CM.shape[1])

    def add(self, hidden_NM: Array, labels_N: Array) -> None:
        """Add images of known and new classes, in any order."""
        for start in range(0, len(hidden_NM), CHUNK):
            part = slice(start, start + CHUNK)
            self._add(exact(hidden_NM[part]), labels_N[part])

    def make_room(self, classes: int) -> None:
        """Let there be so many classes or more, the new ones without images, also in records."""
        self.grow(classes)
        if isinstance(self.scatter, ClasswiseScatter):
            self.scatter.grow(max(0, self.classes - len(self.scatter.rest_CM)))

    def uncut(self) -> "ClassSums":
        """Return the same sums, but keep new images whole, so that each can be left out again.

        They are valid while the originals do not change: the records are not copied.
        """
        later = copy(self)
        if isinstance(self.scatter, ClasswiseScatter):
            later.scatter = RecordsAndImages(self.scatter)
        return later

    def merge(self, other: "ClassSums", numbers: Sequence[int] | None = None) -> None:
        """Add the sums of another, whose class i is ``numbers[i]`` here, or i if none are given."""
        present = np.arange(other.classes) if numbers is None else np.array(numbers, dtype=np.int64)
        self.grow(int(present.max(initial=-1)) + 1)
        self._move(other.counts_C, other.means_CM, present)
        self.scatter.merge(other.scatter, present)

    def follow(self, before_NM: Array, after_NM: Array, penalty: float = PENALTY) -> None:
        """Move the sums as these images' features moved under a changed network.

        The images pass through the old and the new network and give centred features H_o and H_n;
        they are not in the sums. The movement of a feature is regressed on its old place,

            B = H_o^T (H_o H_o^T + d I)^-1 (H_n - H_o),    T = I + B,

        and the sums move along: means by T, the scatter to T^T S T. If the drift is linear and the
        images span the features, the map is exact as d goes to zero.
        """
        before_NM, after_NM = exact(before_NM), exact(after_NM)
        old_M, new_M = before_NM.mean(0), after_NM.mean(0)
        from_NM, moved_NM = before_NM - old_M, (after_NM - new_M) - (before_NM - old_M)
        products_NN = from_NM @ from_NM.T
        scale = float(products_NN.trace()) / len(products_NN)
        if scale <= 0:
            self.means_CM = self.means_CM + (new_M - old_M)
            return
        inner_NM = solve(add_to_diagonal(products_NN, penalty * scale), moved_NM)

        def mapped(rows_KM: Array) -> Array:
            return rows_KM + (rows_KM @ from_NM.T) @ inner_NM

        self.means_CM = mapped(self.means_CM - old_M) + new_M
        self.scatter.follow(mapped)

    def take(self, classes: Sequence[int]) -> None:
        """Keep these classes only, in this order; a pooled scatter keeps what others added."""
        chosen = np.array(classes, dtype=np.int64)
        self.counts_C, self.means_CM = self.counts_C[chosen], self.means_CM[chosen]
        if isinstance(self.scatter, ClasswiseScatter):
            self.scatter.take(chosen)

    def renumbered(self, numbers: Sequence[int]) -> "ClassSums":
        """Return the same sums with class i numbered ``numbers[i]``; others have no images."""
        later = copy(self)
        order = np.full(max(numbers, default=-1) + 1, -1)
        order[np.array(numbers, dtype=np.int64)] = np.arange(self.classes)
        later.grow(self.classes + 1)  # an empty class, which -1 names
        if isinstance(later.scatter, ClasswiseScatter):
            later.scatter = copy(later.scatter)
            later.scatter.grow(1)
        later.take(order.tolist())
        return later

    def _add(self, hidden_NM: Array, labels_N: Array) -> None:
        numbers = to_numpy(labels_N)
        self.grow(int(numbers.max(initial=-1)) + 1)
        hot_NC = one_hot(labels_N, self.classes, hidden_NM)
        counts_C = hot_NC.sum(0)
        means_CM = hot_NC.T @ hidden_NM / _at_least_one(counts_C)[:, None]
        self.scatter.add(hidden_NM - hot_NC @ means_CM, numbers)
        present = np.unique(numbers)
        self._move(counts_C[present], means_CM[present], present)

    def _move(self, more_P: Array, means_PM: Array, present: np.ndarray) -> None:
        """Add counts and means of more images; the scatter accounts for the moved means."""
        old_P = self.counts_C[present]
        total_P = _at_least_one(old_P + more_P)
        apart_PM = means_PM - self.means_CM[present]
        moved = to_numpy((old_P * more_P) > 0)
        weight_P = (old_P * more_P / total_P) ** 0.5
        if moved.any():
            self.scatter.add((weight_P[:, None] * apart_PM)[moved], present[moved])
        # new arrays, since stored sums may share the old ones
        self.counts_C, self.means_CM = self.counts_C + 0, self.means_CM + 0
        self.means_CM[present] += apart_PM * (more_P / total_P)[:, None]
        self.counts_C[present] += more_P

    def grow(self, classes: int) -> None:
        """Make room for so many classes, the new ones without images."""
        new = classes - self.classes
        if new > 0:
            xp = library(self.means_CM)
            self.counts_C = xp.concatenate([self.counts_C, zeros(self.means_CM, new)])
            self.means_CM = xp.concatenate([self.means_CM, zeros(self.means_CM, new, self.width)])


def pooled(width: int, like: Array) -> ClassSums:
    """Return empty sums with one scatter for all classes."""
    empty = zeros(like, 0, width)
    return ClassSums(zeros(like, 0), empty, PooledScatter(width, like))


def classwise(width: int, rank: int, like: Array) -> ClassSums:
    """Return empty sums with a record for each class."""
    empty = zeros(like, 0, width)
    return ClassSums(zeros(like, 0), empty, ClasswiseScatter(width, rank, like))


def compact(sums: ClassSums) -> dict[str, Array]:
    """Return sums with class records as arrays, without directions that are not there."""
    scatter = sums.scatter
    assert isinstance(scatter, ClasswiseScatter)
    there_CR = (scatter.directions_CRM != 0).any(-1)
    return {
        "counts": sums.counts_C,
        "means": sums.means_CM,
        "rest": scatter.rest_CM,
        "ranks": there_CR.sum(1),
        "directions": scatter.directions_CRM[there_CR],
    }


def from_compact(arrays: dict[str, Array], rank: int) -> ClassSums:
    """Undo `compact`; ``rank`` is the number of directions that a record has room for."""
    means_CM = arrays["means"]
    scatter = ClasswiseScatter(means_CM.shape[1], rank, means_CM)
    scatter.grow(len(means_CM))
    scatter.rest_CM = arrays["rest"]
    ends = to_numpy(arrays["ranks"]).cumsum().tolist()
    for label, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        scatter.directions_CRM[label, : end - start] = arrays["directions"][start:end]
    return ClassSums(arrays["counts"], means_CM, scatter)


def _at_least_one(counts_C: Array) -> Array:
    return counts_C + (counts_C == 0)

"""Streams without tasks: each training image comes once, known and new classes mixed.

A stream is cut into segments, and a method is tested at the end of each. Classes are numbered by
their first appearance, so that those seen so far are always 0 .. k - 1. The kinds:

    online    the classes of a task after those of the one before, images shuffled within a task
    blurry    Si-Blurry (Moon et al., arXiv 2308.09303): all images of a disjoint class come in one
              segment; of the other classes' images a share is spread over all segments
    repeated  each class comes back in several segments, with new images each time

Each function gives the rows of the training images in each segment, in the order of the stream.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dafuse.data.dataset import Dataset
from dafuse.data.stream import Stream, require_sizes
from dafuse.errors import DafuseError
from dafuse.seeds import numpy_generator

Segments = list[np.ndarray]  # rows of training images


def taskless_stream(dataset: Dataset, segments: Segments) -> Stream:
    """The stream of these segments, its classes numbered by their first appearance."""
    counts = np.bincount(dataset.train.labels, minlength=len(dataset.classes))
    if not counts.all():
        absent = ", ".join(dataset.classes[c] for c in np.flatnonzero(counts == 0)[:10])
        raise DafuseError(f"{(counts == 0).sum()} class(es) have no training image: {absent}")
    if len(segments) > counts.sum():
        raise DafuseError(
            f"{len(segments)} points need at least as many training images, and there are "
            f"{counts.sum()}: choose fewer --points"
        )
    empty = [number for number, rows in enumerate(segments, 1) if not len(rows)]
    if empty:
        raise DafuseError(
            f"no image is left for segment {empty[0]} of {len(segments)}: choose fewer --points"
        )
    labels = dataset.train.labels[np.concatenate(segments)]
    classes, first = np.unique(labels, return_index=True)
    ends = np.cumsum([len(rows) for rows in segments])
    seen = np.searchsorted(np.sort(first), ends)  # first appearances before each end
    order = classes[np.argsort(first)]
    return Stream(dataset, order.tolist(), np.diff(seen, prepend=0).tolist(), segments)


def online(
    labels: np.ndarray, order: Sequence[int], sizes: Sequence[int], points: int | None, seed: int
) -> Segments:
    """The tasks of a class order and sizes, one after the other, images shuffled within each.

    The segments are the tasks; or, with ``points``, as many parts of equal length.
    """
    require_sizes(sizes, len(order))
    generator = numpy_generator(seed, "stream", "online")
    edges = np.cumsum([0, *sizes])
    tasks = [
        generator.permutation(np.flatnonzero(np.isin(labels, list(order)[a:b])))
        for a, b in pairwise(edges)
    ]
    return tasks if points is None else np.array_split(np.concatenate(tasks), points)


def blurry(
    labels: np.ndarray,
    order: Sequence[int],
    points: int,
    disjoint_share: float,
    blurry_share: float,
    seed: int,
) -> Segments:
    """Si-Blurry: disjoint classes in one segment each, a share of the others' images in any.

    Every class has a home. How many classes are at home in a segment, and how many images are
    spread to it, is drawn at random, as in the authors' code. Theirs may leave a segment without
    any class; here each gets one wherever there are enough.

    Args:
        labels: of the training images
        order: of the classes; those at home in the first segment come first
        points: how many segments
        disjoint_share: share of the classes that are disjoint
        blurry_share: share of the other classes' images that is spread over all segments
        seed: of all that is drawn
    """
    generator = numpy_generator(seed, "stream", "blurry")
    count = len(order)
    is_disjoint = np.zeros(count, dtype=bool)
    is_disjoint[generator.permutation(count)[: round(disjoint_share * count)]] = True
    ordered, home = np.asarray(order), np.empty(count, dtype=np.int64)
    for kind in (is_disjoint, ~is_disjoint):
        home[ordered[kind]] = _random_parts(generator, int(kind.sum()), points)
    segment_N = home[labels]
    blurred = generator.permutation(np.flatnonzero(np.isin(labels, ordered[~is_disjoint])))
    spread = blurred[: round(blurry_share * len(blurred))]
    segment_N[spread] = _random_parts(generator, len(spread), points)
    return _shuffled(generator, segment_N, points)


def repeated(
    labels: np.ndarray, order: Sequence[int], points: int, visits: int, seed: int
) -> Segments:
    """Each class in so many segments, its images split among them as evenly as can be.

    Segments hold about equally many classes. A class of fewer images comes once for each of them.
    """
    if visits > points:
        raise DafuseError(
            f"a class cannot come back in {visits} of {points} segments: choose fewer --visits or "
            "more --points"
        )
    generator = numpy_generator(seed, "stream", "repeated")
    segment_N, visited = np.empty(len(labels), dtype=np.int64), np.zeros(points)
    for label in order:
        rows = generator.permutation(np.flatnonzero(labels == label))
        emptiest = np.argsort(visited + generator.random(points))[: max(min(visits, len(rows)), 1)]
        visited[emptiest] += 1
        for segment, part in zip(emptiest, np.array_split(rows, len(emptiest)), strict=True):
            segment_N[part] = segment
    return _shuffled(generator, segment_N, points)


def _random_parts(generator: np.random.Generator, count: int, parts: int) -> np.ndarray:
    """Cut a row of things at random; return the part of each. No part is empty if possible."""
    if count >= parts > 1:
        cuts = generator.choice(count - 1, parts - 1, replace=False) + 1
    else:
        cuts = generator.integers(0, count + 1, parts - 1)
    return np.searchsorted(np.sort(cuts), np.arange(count), side="right")


def _shuffled(generator: np.random.Generator, segment_N: np.ndarray, points: int) -> Segments:
    """The rows of each segment, in an order drawn at random."""
    return [generator.permutation(np.flatnonzero(segment_N == k)) for k in range(points)]

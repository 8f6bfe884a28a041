"""Streams without tasks: each image once, classes by first appearance, shares as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.stream import Stream
from dafuse.engine.config import RunConfig
from dafuse.engine.streams import make_stream
from dafuse.errors import DafuseError

KINDS = ("online", "blurry", "repeated")
COUNTS = [12, 7, 20, 9, 15, 11, 8, 16]  # training images of each class


def dataset(counts: list[int], tested: int = 2) -> Dataset:
    """Training images before test images in one source, so that an index names an image."""
    train, test = np.repeat(np.arange(len(counts)), counts), np.repeat(range(len(counts)), tested)
    pixels = np.zeros((len(train) + len(test), 1, 1, 3), dtype=np.uint8)
    index = np.arange(len(pixels))
    return Dataset(
        "numbered",
        [f"name {c}" for c in range(len(counts))],
        ImageSet(pixels, train, index[: len(train)]),
        ImageSet(pixels, test, index[len(train) :]),
    )


def make(kind: str, counts: list[int] = COUNTS, **options: object) -> Stream:
    settings = {"increment": 2, "stream": kind, **options}
    return make_stream(RunConfig(**settings), dataset(counts))


def rows(stream: Stream) -> list[int]:
    return [index for task in stream for index in task.train.index.tolist()]


def segments_of(stream: Stream) -> dict[int, set[int]]:
    """Return the segments in which each class has images."""
    return {
        label: {task.index for task in stream if label in task.train.labels}
        for label in range(len(stream.classes))
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("points", [None, 4, 5])
def test_each_image_comes_once_and_classes_count_by_first_appearance(
    kind: str, points: int | None
) -> None:
    data, stream = dataset(COUNTS), make(kind, points=points)
    assert len(stream) == (points or 4)
    assert sorted(rows(stream)) == list(range(sum(COUNTS)))
    seen: list[int] = []
    for task in stream:
        assert task.first == len(seen)
        for index, label in zip(task.train.index, task.train.labels, strict=True):
            if label not in seen:
                assert label == len(seen)
                seen.append(label)
            assert stream.classes[label] == data.classes[data.train.labels[index]]
        assert task.seen == len(seen)
        assert task.class_names == stream.classes[task.first : task.seen]
        assert task.test.labels.tolist() == sorted([*range(task.first, task.seen)] * 2)
    assert stream.sizes == [task.size for task in stream]
    assert sum(stream.sizes) == len(COUNTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    first, again, other = (make(kind, seed=seed) for seed in (3, 3, 4))
    assert rows(first) == rows(again)
    assert first.classes == again.classes
    assert rows(first) != rows(other)


def test_online_has_the_tasks_in_their_order_and_their_images_in_none() -> None:
    online, tasks = make("online"), make_stream(RunConfig(increment=2), dataset(COUNTS))
    assert online.sizes == tasks.sizes
    for segment, task in zip(online, tasks, strict=True):
        assert set(segment.class_names) == set(task.class_names)
        assert sorted(segment.train.index) == sorted(task.train.index)
    assert any(len(set(segment.train.labels[:8])) == 2 for segment in online)


def test_online_is_tested_at_regular_points_whatever_the_tasks() -> None:
    tasks, finer = make("online"), make("online", points=9)
    assert rows(finer) == rows(tasks)  # the same stream
    lengths = [len(segment.train) for segment in finer]
    assert max(lengths) - min(lengths) <= 1
    assert 0 in finer.sizes


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_blurry_keeps_each_disjoint_class_in_one_segment(share: float, seed: int) -> None:
    counts = [200] * 12
    stream = make("blurry", counts, disjoint_share=share, blurry_share=0.5, points=3, seed=seed)
    whole = [label for label, where in segments_of(stream).items() if len(where) == 1]
    assert len(whole) == round(12 * share)  # by chance no blurry class of 200 images is


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 1.0])
def test_blurry_spreads_the_share_that_was_asked_for(share: float) -> None:
    """The share asked for lies outside a class's main segment, less what is drawn to its home."""
    away = []
    for seed in range(12):
        stream = make("blurry", [50] * 20, disjoint_share=0, blurry_share=share, seed=seed)
        counts = np.array([np.bincount(t.train.labels, minlength=20) for t in stream])
        away.append(1 - counts.max(0).sum() / counts.sum())
    if share < 1:  # with all images spread no segment is a class's own
        assert np.mean(away) == pytest.approx(share * 9 / 10, abs=0.05)
    else:
        assert np.mean(away) > 0.4


def test_blurry_varies_how_many_classes_are_at_home() -> None:
    stream = make("blurry", [4] * 40, disjoint_share=1, points=5)
    assert len(set(stream.sizes)) > 1
    assert min(stream.sizes) >= 1


@pytest.mark.parametrize("visits", [2, 3])
def test_repeated_classes_come_back_with_new_images(visits: int) -> None:
    stream = make("repeated", visits=visits, points=6)
    for label, where in segments_of(stream).items():
        assert len(where) == visits
        parts = [int((stream[k].train.labels == label).sum()) for k in where]
        assert max(parts) - min(parts) <= 1
    classes = [len(set(task.train.labels)) for task in stream]
    assert max(classes) - min(classes) <= 1


def test_a_class_of_one_image_comes_once() -> None:
    stream = make("repeated", [1, 1, 5, 2, 5], points=3)
    assert sorted(len(where) for where in segments_of(stream).values()) == [1, 1, 2, 3, 3]


@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(0, 50),
)
def test_tiny_data_give_a_whole_stream_or_a_sentence(
    kind: str, counts: list[int], points: int, seed: int
) -> None:
    try:
        stream = make(kind, counts, points=points, seed=seed, increment=1)
    except DafuseError:
        assert points > 1 or kind == "repeated"  # one segment is always whole
        return
    assert sorted(rows(stream)) == list(range(sum(counts)))
    assert all(len(task.train) for task in stream)
    assert stream[0].size


@pytest.mark.parametrize("kind", KINDS)
def test_more_points_than_images_is_told(kind: str) -> None:
    with pytest.raises(DafuseError, match=r"7 points need at least as many training images.* 5"):
        make(kind, [1] * 5, increment=1, points=7)


def test_a_class_without_training_images_is_named() -> None:
    for kind in KINDS:
        with pytest.raises(DafuseError, match="no training image: name 1"):
            make(kind, [6, 0, 6], increment=1)


def test_orders_and_sizes_are_checked_as_for_tasks() -> None:
    for kind in KINDS:
        with pytest.raises(DafuseError, match=r"each of 0\.\.7 once"):
            make(kind, order=[0, 1])
    with pytest.raises(DafuseError, match="sum to 8"):
        make("online", increment=[2, 2])

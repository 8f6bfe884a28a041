"""The stream: the class order of the field, task sizes, and tasks that share nothing."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.stream import Stream, class_order, task_sizes
from dafuse.errors import DafuseError

# the first classes of `np.random.seed(1993); np.random.permutation(n)`: every published run's order
FIRST_OF_100 = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38]
FIRST_OF_200 = [168, 136, 51, 9, 183, 101, 171, 99, 42, 159, 191, 70, 16, 188, 27, 10, 175, 26]
FIRST_OF_200 += [68, 187]


def dataset(train_labels: list[int], test_labels: list[int], count: int) -> Dataset:
    """Training images before test images in one source, so that an index names an image."""
    total = len(train_labels) + len(test_labels)
    pixels = np.zeros((total, 1, 1, 3), dtype=np.uint8)
    index = np.arange(total)
    train = ImageSet(pixels, np.array(train_labels, dtype=np.int64), index[: len(train_labels)])
    test = ImageSet(pixels, np.array(test_labels, dtype=np.int64), index[len(train_labels) :])
    return Dataset("numbered", [f"name {c}" for c in range(count)], train, test)


@pytest.mark.parametrize(("count", "first"), [(100, FIRST_OF_100), (200, FIRST_OF_200)])
def test_order_of_seed_1993(count: int, first: list[int]) -> None:
    assert class_order(count, "seed", 1993)[:20] == first


@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_seeded_order_is_the_legacy_permutation(seed: int, count: int) -> None:
    before = np.random.get_state()
    try:
        np.random.seed(seed)
        legacy = np.random.permutation(count)
    finally:
        np.random.set_state(before)
    order = class_order(count, "seed", seed)
    assert order == legacy.tolist()
    assert all(type(each) is int for each in order)  # JSON takes no NumPy integers


def test_seeded_order_leaves_numpys_global_generator_alone() -> None:
    np.random.seed(3)
    expected = np.random.random(4)
    np.random.seed(3)
    class_order(50, "seed", 1993)
    assert np.random.random(4).tolist() == expected.tolist()


def test_natural_order_ignores_the_seed() -> None:
    assert class_order(5, "natural", 1) == class_order(5, "natural", 2) == [0, 1, 2, 3, 4]


def test_explicit_order_is_kept_as_plain_integers() -> None:
    order = class_order(3, np.array([2, 0, 1]).tolist(), 1993)
    assert order == [2, 0, 1]
    assert all(type(each) is int for each in class_order(3, list(np.array([2, 0, 1])), 0))


def test_unknown_order_is_named() -> None:
    with pytest.raises(DafuseError, match="'seed', 'natural' or a list of classes, not 'random'"):
        class_order(3, "random", 0)


@pytest.mark.parametrize(
    "order",
    [[0, 1], [0, 1, 1], [0, 1, 3], [1, 2, 3], [-1, 0, 1], [0, 1, 2, 3], []],
    ids=["too few", "twice", "too large", "from one", "negative", "too many", "none"],
)
def test_order_must_name_each_class_once(order: list[int]) -> None:
    with pytest.raises(DafuseError, match=r"must name each of 0\.\.2 once"):
        Stream(dataset([0, 1, 2], [0, 1, 2], 3), order, [3])


@pytest.mark.parametrize(
    ("count", "increment", "sizes"),
    [
        (100, 5, [5] * 20),
        (200, 20, [20] * 10),
        (10, 4, [4, 4, 2]),  # what remains is the last task
        (10, 9, [9, 1]),
        (4, 1, [1, 1, 1, 1]),
        (7, 7, [7]),
        (10, [2, 3, 5], [2, 3, 5]),
        (10, (10,), [10]),
    ],
)
def test_task_sizes(count: int, increment: int | list[int], sizes: list[int]) -> None:
    assert task_sizes(count, increment) == sizes
    classes = list(range(count))
    stream = Stream(dataset(classes, classes, count), classes, sizes)
    assert len(stream) == len(sizes)
    assert [task.size for task in stream] == sizes


@pytest.mark.parametrize(
    ("increment", "message"),
    [
        (11, "a task of 11 classes needs more than the 10 there are"),
        (0, "at least one class, not 0"),
        (-5, "at least one class, not -5"),
    ],
)
def test_impossible_increments(increment: int, message: str) -> None:
    with pytest.raises(DafuseError, match=message):
        task_sizes(10, increment)


@pytest.mark.parametrize("sizes", [[2], [2, 2], [1, 1, 1, 1], [3, 0], [4, -1]])
def test_sizes_must_be_positive_and_sum_to_the_classes(sizes: list[int]) -> None:
    labels = [0, 1, 2]
    with pytest.raises(DafuseError, match=r"must be positive and sum to 3"):
        Stream(dataset(labels, labels, 3), labels, task_sizes(3, sizes))


def test_no_sizes_at_all_are_refused() -> None:
    with pytest.raises(DafuseError, match=r"must be positive and sum to 3"):
        Stream(dataset([0, 1, 2], [], 3), [0, 1, 2], task_sizes(3, []))


@st.composite
def streams(draw: st.DrawFn) -> tuple[Dataset, list[int], list[int]]:
    count = draw(st.integers(1, 8))
    some_labels = st.lists(st.integers(0, count - 1), max_size=30)
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, count - 1))) if count > 1 else [])
    edges = [0, *cuts, count]
    sizes = [high - low for low, high in pairwise(edges)]
    return dataset(draw(some_labels), draw(some_labels), count), list(order), sizes


@given(streams())
def test_tasks_share_nothing_and_leave_nothing_out(made: tuple[Dataset, list, list]) -> None:
    source, order, sizes = made
    stream = Stream(source, order, sizes)
    tasks = list(stream)
    assert [task.index for task in tasks] == list(range(len(sizes)))
    assert [task.number for task in tasks] == list(range(1, len(sizes) + 1))
    assert [task.size for task in tasks] == sizes
    assert [task.seen for task in tasks] == np.cumsum(sizes).tolist()
    assert [task.first for task in tasks] == [task.seen - task.size for task in tasks]
    names = [name for task in tasks for name in task.class_names]
    assert names == stream.classes == [source.classes[c] for c in order]
    for part in ("train", "test"):
        whole: ImageSet = getattr(source, part)
        parts: list[ImageSet] = [getattr(task, part) for task in tasks]
        name_of = {
            int(i): source.classes[c] for i, c in zip(whole.index, whole.labels, strict=True)
        }
        index = np.concatenate([images.index for images in parts])
        assert sorted(index.tolist()) == sorted(whole.index.tolist())
        for task, images in zip(tasks, parts, strict=True):
            assert images.items is whole.items
            assert images.labels.tolist() == sorted(images.labels.tolist())  # sorted by class
            for i, label in zip(images.index, images.labels, strict=True):
                assert task.first <= label < task.seen
                assert stream.classes[label] == name_of[int(i)]
                assert order[label] == int(name_of[int(i)].removeprefix("name "))


@given(streams())
def test_the_data_set_itself_is_not_changed(made: tuple[Dataset, list, list]) -> None:
    source, order, sizes = made
    train, test = source.train.labels.copy(), source.test.labels.copy()
    list(Stream(source, order, sizes))
    assert source.train.labels.tolist() == train.tolist()
    assert source.test.labels.tolist() == test.tolist()


def test_images_of_a_class_keep_their_order() -> None:
    source = dataset([1, 0, 1, 0, 1], [0, 1], 2)
    task = Stream(source, [1, 0], [2])[0]
    assert task.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert task.train.index.tolist() == [0, 2, 4, 1, 3]


@given(streams())
def test_tests_until_are_the_tests_so_far_one_for_each_task(
    made: tuple[Dataset, list, list],
) -> None:
    stream = Stream(*made)
    for task in stream:
        tests = stream.tests_until(task)
        assert len(tests) == task.number
        for earlier, images in zip(stream, tests, strict=False):
            assert images.index.tolist() == earlier.test.index.tolist()
            assert images.labels.tolist() == earlier.test.labels.tolist()
        assert sum(map(len, tests)) == int((stream_labels(made) < task.seen).sum())


def stream_labels(made: tuple[Dataset, list, list]) -> np.ndarray:
    source, order, _ = made
    return np.array([order.index(c) for c in source.test.labels])


def test_tasks_are_found_by_their_number_only() -> None:
    stream = Stream(dataset([0, 1], [0, 1], 2), [0, 1], [1, 1])
    assert stream[1].class_names == ["name 1"]
    for index in (-1, 2):
        with pytest.raises(IndexError):
            stream[index]


def test_a_class_without_test_images_makes_an_empty_test_set() -> None:
    stream = Stream(dataset([0, 1], [0], 2), [1, 0], [1, 1])
    assert [len(task.test) for task in stream] == [0, 1]

"""Many classes by totals and one factor: what all records give, and what was solved before."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dafuse.heads.many as many_classes
from dafuse.heads.arrays import solve
from dafuse.heads.closed_form import System
from dafuse.heads.confidence import unit_of
from dafuse.heads.factored import FactoredHead, awake_means, head_from
from dafuse.heads.many import ManyClasses, many
from dafuse.heads.resting import awake, rounded
from dafuse.heads.strips import ROWS, Solver, Strips
from dafuse.heads.sums import ClassSums, classwise
from dafuse.heads.totals import Totals

WIDTH, TOKEN, CLASSES, EACH = 24, slice(8, 16), 12, 10


class World:
    """Classes about random means far from zero, a few images of each."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.means = 5 + self.rng.normal(size=(40, WIDTH))

    def images(self, classes: Sequence[int], each: int = EACH) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.array(classes), each)
        noise = self.rng.normal(size=(len(labels), WIDTH))
        return (self.means[labels] + noise).astype(np.float32), labels


def empty(penalty: float | None = 0.01, rank: int = 4) -> ManyClasses:
    def nothing(number: int) -> dict[str, np.ndarray]:
        raise AssertionError(f"the record of class {number} is stored nowhere")

    return ManyClasses(WIDTH, rank, penalty, TOKEN, np.ones(WIDTH, np.float32), nothing)


def record_sums(solved: ManyClasses) -> ClassSums:
    return solved.records(range(solved.classes))


def whole(strips: Strips) -> np.ndarray:
    return strips.block(slice(0, strips.width))


def weights(solved: ManyClasses) -> np.ndarray:
    """The weight vectors that the factor stands for, without the unit."""
    centred_CM = awake_means(solved.means_CM, solved.steps) - solved.centre_M
    return (solved.images / solved.classes * solved.solver(centred_CM.T.astype(np.float64))).T


def assert_same_totals(one: Totals, other: Totals) -> None:
    for name, array in other.arrays().items():
        scale = np.abs(array).max()
        assert np.abs(one.arrays()[name] - array).max() <= 1e-12 * scale, name


@pytest.mark.parametrize("width", [1, 7, ROWS, ROWS + 5, 2 * ROWS + 1])
def test_strips_compute_what_the_whole_matrix_does(width: int) -> None:
    rng = np.random.default_rng(width)
    rows, columns = rng.normal(size=(width + 9, width)), rng.normal(size=(width, 3))
    strips = Strips.zeros(width)
    strips.add_products(rows)
    strips.add_products(rows[:4], -1.0)
    strips.add_to_diagonal(np.arange(width))
    strips.add_to_diagonal(0.5)
    square = rows[4:].T @ rows[4:] + np.diag(np.arange(width) + 0.5)
    assert np.allclose(whole(strips), square)
    assert strips.trace == pytest.approx(np.trace(square))
    part = slice(width // 3, width - width // 4)
    assert np.allclose(strips.block(part), square[part, part])
    assert np.allclose(strips.product(columns), square @ columns)
    solver = Solver.of(strips)
    assert np.allclose(solver(columns), solve(square, columns), rtol=1e-6, atol=1e-9)
    again = Solver(Strips(strips.flat, width))
    assert np.allclose(again(columns), solver(columns), rtol=1e-9)
    lower = np.linalg.cholesky(square)
    assert np.allclose(solver.backward(columns), np.linalg.solve(lower.T, columns), atol=1e-7)


def test_a_matrix_that_is_not_definite_is_not_factorised() -> None:
    strips = Strips.zeros(5)
    strips.add_to_diagonal(np.array([1, 1, -1, 1, 1]))
    with pytest.raises(np.linalg.LinAlgError):
        Solver.of(strips)
    with pytest.raises(ValueError, match="not the strips"):
        Strips(np.zeros(7), 5)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    order=st.permutations(range(6)),
    more=st.lists(st.integers(0, 5), max_size=6),
    gone=st.sets(st.integers(0, 5), max_size=4),
)
def test_totals_are_those_of_all_records(
    seed: int, order: list[int], more: list[int], gone: set[int]
) -> None:
    """After lessons of new and known classes and forgetting: updated ones equal fresh ones."""
    world, solved = World(seed), empty()
    images, labels = world.images(order[:3])
    solved.learn(images, np.searchsorted(np.sort(order[:3]), labels))
    solved.learn(*world.images([3, 4, 5], 3))
    for label in more:
        solved.learn(*world.images([label], 4))
    remaining = [number for number in range(6) if number not in gone]
    solved.drop(remaining)
    updated = solved.require_totals()
    fresh = Totals.empty(WIDTH)
    fresh.add(record_sums(solved))
    assert_same_totals(updated, fresh)
    solved.totals = None
    assert_same_totals(solved.require_totals(), updated)
    assert solved.classes == len(remaining)


@pytest.mark.parametrize("penalty", [None, 1e-7, 0.01])
def test_weights_are_those_that_are_solved_from_all_records(penalty: float | None) -> None:
    world, solved = World(), empty(penalty)
    solved.learn(*world.images(range(8)))
    solved.learn(*world.images(range(8, CLASSES), 7))
    solved.learn(*world.images([2, 9], 5))
    sums = record_sums(solved)
    head = System(sums, "ridge").head(solved.choice.penalty)
    scale = np.abs(head.weights_MC).max()
    centred_CM = sums.means_CM - sums.means_CM.mean(0)
    exact = sums.images / CLASSES * solved.solver(centred_CM.T)
    assert np.abs(exact - head.weights_MC).max() < 1e-9 * scale
    assert np.abs(weights(solved).T - head.weights_MC).max() < 1e-5 * scale  # means in float32
    images, _ = world.images(range(CLASSES), 3)
    expected = head.scores(images.astype(np.float64))
    predicts = solved.head()
    assert np.allclose(predicts.scores(images) * solved.unit, expected, atol=1e-4)
    assert np.allclose(predicts.plain().scores(images), predicts.scores(images), atol=1e-4)
    assert solved.unit == pytest.approx(unit_of(head, sums.means_CM), rel=0.2)


def test_the_order_of_lessons_does_not_matter() -> None:
    world = World()
    lessons = [world.images([k]) for k in range(6)]
    one, other = empty(), empty()
    for images, labels in lessons:
        one.learn(images, labels)
    order = [4, 2, 5, 0, 1, 3]
    for place, k in enumerate(order):
        other.learn(lessons[k][0], np.full(EACH, place))
    assert_same_totals(other.require_totals(), one.require_totals())
    assert np.allclose(weights(other), weights(one)[order], rtol=1e-9, atol=1e-12)


def test_classes_that_are_taken_up_and_dropped_leave_what_was_there() -> None:
    world, solved, other = World(), empty(), empty()
    solved.learn(*world.images(range(5)))
    other.learn(*world.images(range(4)))
    before = solved.require_totals().matrix(5, solved.images)
    kept = weights(solved)
    solved.take_up(np.array([7, 5, 6, 8]), record_sums(other))
    solved.solve()
    assert (solved.classes, solved.images) == (9, 90)
    assert np.array_equal(solved.means_CM[7], other.means_CM[0])
    solved.drop(range(5))
    after = solved.require_totals().matrix(5, solved.images)
    assert np.allclose(whole(after), whole(before), rtol=1e-10)
    assert np.allclose(weights(solved), kept, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 128])
def test_sums_that_are_taken_up_count_with_the_next_lesson(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lesson in parts, known and new classes in any order, is the lesson in one."""
    monkeypatch.setattr(many_classes, "AT_ONCE", at_once)
    world, one, other = World(), empty(rank=30), empty(rank=30)
    first, lesson = world.images(range(4)), world.images([1, 3, 4, 5, 6])
    for solved in (one, other):
        solved.learn(*first)
    one.learn(*lesson)
    images, labels = lesson
    tried = np.arange(len(labels)) % 2 == 0
    for numbers in ([4, 1], [6, 3, 5]):
        part = classwise(WIDTH, 30, images)
        for place, number in enumerate(numbers):
            rows = (labels == number) & ~tried
            part.add(images[rows], np.full(rows.sum(), place))
        other.take_up(np.array(numbers), part)
    other.learn(images[tried], labels[tried])
    assert np.array_equal(other.counts_C, one.counts_C)
    apart = np.abs(other.means_CM.astype(int) - one.means_CM)
    assert apart.max() <= 1
    assert np.allclose(
        weights(other), weights(one), rtol=0.05, atol=0.05 * np.abs(weights(one)).max()
    )


def test_more_images_of_a_class_are_joined_when_models_are() -> None:
    world, one, other = World(), empty(), empty()
    one.learn(*world.images(range(4)))
    other.learn(*world.images([0, 1]))
    expected = record_sums(one)
    expected.merge(record_sums(other).renumbered([2, 0]))
    stored, _ = rounded(expected, "float16")
    one.take_up(np.array([2, 0]), record_sums(other))
    assert np.array_equal(one.counts_C, stored.counts_C)
    fresh = Totals.empty(WIDTH)
    fresh.add(stored)
    assert_same_totals(one.require_totals(), fresh)


def test_leave_one_out_is_teaching_again_without_the_image() -> None:
    """With records that hold everything, it is exact."""
    world = World()
    images, labels = world.images(range(5), 4)
    solved = ManyClasses(WIDTH, 30, 0.05, TOKEN, np.ones(WIDTH, np.float32), lambda n: {})
    sums = classwise(WIDTH, 30, images)
    sums.add(images, labels)
    hold_exactly(solved, sums)
    found = solved.left_out(images, labels)
    share = solved.choice.penalty
    scale = System(sums, "ridge").scale
    for row in range(0, len(images), 3):
        rest = np.arange(len(images)) != row
        without = classwise(WIDTH, 30, images)
        without.add(images[rest], labels[rest])
        centred = without.means_CM - without.means_CM.mean(0)
        each = sums.images / 5
        matrix = without.scatter.square() + each * centred.T @ centred
        matrix += share * scale * np.eye(WIDTH)
        expected = (images[row] - without.means_CM.mean(0)) @ np.linalg.solve(matrix, centred.T)
        assert np.allclose(found[row], each * expected, rtol=1e-3, atol=1e-3)


def hold_exactly(solved: ManyClasses, sums: ClassSums) -> None:
    """Solve from these sums, with class means rounded by a step that hardly shows."""
    resting = rounded(sums, "float16")[1]
    solved.go_on_from({**resting, "counts": sums.counts_C})
    sums.means_CM = awake_means(resting["means"], resting["means_step"]).astype(np.float64)
    solved.totals = Totals.empty(WIDTH)
    solved.totals.add(sums)
    solved.solve()


def test_leave_one_out_without_products_among_all_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many classes, only the products of the images' own classes are made: the same scores."""
    world, sums = World(), classwise(WIDTH, 4, np.zeros(0))
    images, labels = world.images(range(CLASSES))
    sums.add(images, labels)
    for kind in ("ridge", "lda"):
        wide = {rank: classwise(200, rank, np.zeros(0)) for rank in (1, 4)}
        far = np.pad(images, ((0, 0), (0, 200 - WIDTH)))
        for one in wide.values():
            one.add(far, labels)
        for known, hidden in ((sums, images), (wide[1], far), (wide[4], far)):
            monkeypatch.setattr("dafuse.heads.closed_form.FEW_CLASSES", 1000)
            (few,) = System(known, kind).left_out(hidden[::3], labels[::3], [0.1])
            monkeypatch.setattr("dafuse.heads.closed_form.FEW_CLASSES", 2)
            (found,) = System(known, kind).left_out(hidden[::3], labels[::3], [0.1])
            assert np.allclose(found, few, rtol=1e-9, atol=1e-9)
        head = System(sums, kind).head(0.1)
        exact = unit_of(head, sums.means_CM)
        monkeypatch.setattr("dafuse.heads.confidence.FEW_CLASSES", 2)
        assert unit_of(head, sums.means_CM) == pytest.approx(exact, rel=1e-9)
        monkeypatch.undo()


def test_familiarity_tells_taught_classes_from_others() -> None:
    refused = []
    for seed in range(4):
        world, solved = World(seed), empty()
        for start in range(0, 20, 4):
            solved.learn(*world.images(range(start, start + 4), 40))
        head = solved.head()
        tested = [world.images(classes, 30)[0] for classes in (range(20), range(20, 40))]
        refused.append([
            float((head.answers(feats).familiarity_N < head.threshold).mean()) for feats in tested
        ])  # fmt: skip
    known, others = np.mean(refused, 0)
    assert known == pytest.approx(0.05, abs=0.04)
    assert others > 2 * known


def test_a_head_is_read_as_it_was_stored() -> None:
    world, solved = World(), empty()
    solved.learn(*world.images(range(CLASSES)))
    images, _ = world.images(range(CLASSES), 2)
    head = solved.head()
    again = head_from(head.arrays(), head.numbers())
    assert isinstance(again, FactoredHead)
    for one, other in zip(head.answers(images), again.answers(images), strict=True):
        assert np.array_equal(one, other)
    for name, wrong in (("factor", np.zeros(3, np.float32)), ("weights_step", np.zeros((2, 2)))):
        with pytest.raises(ValueError, match=r"strips|steps"):
            head_from({**head.arrays(), name: wrong}, head.numbers())


def test_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_classes, "MANY_CLASSES", 10)
    assert many(10, 1000, 500, ("ridge",))
    assert not many(9, 1000, 500, ("ridge",))
    assert not many(10, 999, 500, ("ridge",))  # so few images that other penalties are tried
    assert not many(10, 1000, 500, ("ridge", "lda"))


def test_what_rests_is_what_wakes() -> None:
    """The means that predict are those of the records, to float32."""
    world, solved = World(), empty()
    solved.learn(*world.images(range(CLASSES)))
    sums = classwise(WIDTH, 4, np.zeros(0))
    records = [solved.record(number) for number in range(CLASSES)]
    awake(sums, {name: np.stack([one[name] for one in records]) for name in records[0]})
    assert np.allclose(awake_means(solved.means_CM, solved.steps), sums.means_CM, rtol=1e-6)
    some = awake_means(solved.means_CM, solved.steps, TOKEN)
    assert np.allclose(some, sums.means_CM[:, TOKEN], rtol=1e-6)

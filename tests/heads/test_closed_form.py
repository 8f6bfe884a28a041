"""Closed-form heads against direct solutions and brute force, in numpy and in torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dafuse.heads.choice import ENOUGH, FACTORS, MANY, NEAREST, choose, emphasis, usual_penalty
from dafuse.heads.closed_form import KINDS, Kind, System
from dafuse.heads.confidence import Temperature, unit_of
from dafuse.heads.lifting import Lift, depth_weights
from dafuse.heads.resting import at_rest, awake
from dafuse.heads.scatter import ClasswiseScatter, PooledScatter
from dafuse.heads.sums import ClassSums, classwise, compact, from_compact, pooled

LIBRARIES: dict[str, Callable[[np.ndarray], Any]] = {"numpy": lambda a: a, "torch": torch.tensor}
every_library = pytest.mark.parametrize("library", LIBRARIES)
every_kind = pytest.mark.parametrize("kind", KINDS)
# a width below the images, one in which they span a part, and one in which they span little
every_width = pytest.mark.parametrize("width", [6, 60, 200])
CLASSES = 4


def world(width: int, images: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, M] that are not centred, and unequal classes of at least two images."""
    rng = np.random.default_rng(seed)
    extra = rng.integers(0, CLASSES, images - 2 * CLASSES)
    labels = np.concatenate([np.arange(CLASSES).repeat(2), extra])
    centres = rng.normal(size=(CLASSES, width))
    return rng.normal(size=(images, width)) + centres[labels] + 1, labels


def taught(hidden: np.ndarray, labels: np.ndarray, library: str = "numpy") -> ClassSums:
    put = LIBRARIES[library]
    sums = pooled(hidden.shape[1], put(hidden))
    sums.add(put(hidden), put(labels))
    return sums


def direct(
    hidden: np.ndarray, labels: np.ndarray, kind: Kind, penalty: float, between: float, images: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [M, C] and bias [C] by the definition, in a few lines; the penalty is absolute."""
    means = np.stack([hidden[labels == c].mean(0) for c in range(CLASSES)])
    centre, apart = means.mean(0), hidden - means[labels]
    centred = means - centre
    matrix = apart.T @ apart + penalty * np.eye(hidden.shape[1])
    if kind == "ridge":
        weights = np.linalg.solve(matrix + between * centred.T @ centred, between * centred.T)
        return weights, -centre @ weights
    weights = images * np.linalg.solve(matrix, centred.T)
    return weights, -centre @ weights - (centred.T * weights).sum(0) / 2


@every_library
@every_kind
@every_width
def test_a_head_is_the_direct_solution(library: str, kind: Kind, width: int) -> None:
    hidden, labels = world(width)
    system = System(taught(hidden, labels, library), kind)
    for penalty in (1e-3, 1.0, 100.0):
        head = system.head(penalty)
        absolute = penalty * system.scale
        weights, bias = direct(hidden, labels, kind, absolute, system.between, len(labels))
        assert np.allclose(np.asarray(head.weights_MC), weights, rtol=1e-8, atol=1e-10)
        assert np.allclose(np.asarray(head.bias_C), bias, rtol=1e-8, atol=1e-10)


@every_library
@every_kind
@every_width
def test_leaving_out_is_teaching_without_the_image(library: str, kind: Kind, width: int) -> None:
    hidden, labels = world(width)
    put = LIBRARIES[library]
    system = System(taught(hidden, labels, library), kind)
    penalties = [1e-3, 1.0, 100.0]
    found = system.left_out(put(hidden), put(labels), penalties)
    for penalty, scores in zip(penalties, found, strict=True):
        for i, expected in enumerate(scores):
            others = np.arange(len(labels)) != i
            absolute = penalty * system.scale
            weights, bias = direct(
                hidden[others], labels[others], kind, absolute, system.between, len(labels)
            )
            again = hidden[i] @ weights + bias
            assert np.allclose(np.asarray(expected), again, rtol=1e-6, atol=1e-8 * abs(again).max())


def test_ridge_is_the_regression_to_one_hot_targets_where_classes_are_equal() -> None:
    hidden, _ = world(5, 24)
    labels = np.arange(24) % CLASSES
    system = System(taught(hidden, labels), "ridge")
    targets = np.eye(CLASSES)[labels]
    centred, centred_targets = hidden - hidden.mean(0), targets - targets.mean(0)
    matrix = centred.T @ centred + 0.5 * system.scale * np.eye(5)
    weights = np.linalg.solve(matrix, centred.T @ centred_targets)
    assert np.allclose(system.head(0.5).weights_MC, weights)


@every_library
def test_a_huge_penalty_makes_lda_the_nearest_mean(library: str) -> None:
    hidden, labels = world(20)
    put = LIBRARIES[library]
    scores = System(taught(hidden, labels, library), "lda").head(NEAREST).scores(put(hidden))
    means = np.stack([hidden[labels == c].mean(0) for c in range(CLASSES)])
    distances = ((hidden[:, None] - means) ** 2).sum(2)
    assert (np.asarray(scores).argmax(1) == distances.argmin(1)).all()


@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, 39), max_size=6, unique=True),
    merged=st.booleans(),
    width=st.sampled_from([8, 70]),
)
def test_order_splitting_and_merging_do_not_matter(
    seed: int, cuts: list[int], merged: bool, width: int
) -> None:
    hidden, labels = world(width, 40, seed=1)
    together = System(taught(hidden, labels), "ridge").head(0.01).scores(hidden)
    mixed = np.random.default_rng(seed).permutation(40)
    parts = np.split(mixed, sorted(cuts))
    sums = pooled(width, hidden)
    for part in parts:
        if merged:
            other = pooled(width, hidden)
            other.add(hidden[part], labels[part])
            sums.merge(other)
        else:
            sums.add(hidden[part], labels[part])
    apart = System(sums, "ridge").head(0.01).scores(hidden)
    assert np.abs(apart - together).max() <= 1e-6 * np.abs(together).max()


def test_sums_are_in_float64_whatever_comes_in() -> None:
    hidden, labels = world(30, 4000)
    half = torch.tensor(hidden, dtype=torch.float16)
    sums = pooled(30, half)
    for part in torch.arange(4000).split(7):
        sums.add(half[part], torch.tensor(labels)[part])
    exact = taught(half.double().numpy(), labels)
    assert sums.means_CM.dtype == sums.scatter.square().dtype == torch.float64
    assert np.allclose(sums.scatter.square().numpy(), exact.scatter.square(), rtol=1e-9)
    assert np.allclose(sums.means_CM.numpy(), exact.means_CM, rtol=1e-12)


def test_classes_may_come_in_any_order_and_skip_numbers_for_a_while() -> None:
    hidden, labels = world(6)
    sums = pooled(6, hidden)
    late = labels == 1
    sums.add(hidden[~late], labels[~late])
    assert sums.counts_C[1] == 0
    sums.add(hidden[late], labels[late])
    whole = taught(hidden, labels)
    assert np.allclose(sums.means_CM, whole.means_CM)
    assert np.allclose(sums.scatter.square(), whole.scatter.square())


def sums_at_rest(hidden: np.ndarray, labels: np.ndarray) -> ClassSums:
    """Return the sums as they are after a lesson."""
    sums = pooled(hidden.shape[1], hidden)
    awake(sums, at_rest(taught(hidden, labels), "float16"))
    return sums


def test_a_typical_class_has_the_geometric_mean_of_the_counts() -> None:
    hidden = np.random.default_rng(0).normal(size=(10, 6))
    sums = taught(hidden, np.array([0] * 8 + [1] * 2))
    assert np.isclose(sums.typical, 2 * 4)
    equal = taught(hidden, np.arange(10) % 5)
    assert np.isclose(equal.typical, equal.images)


# choosing ------------------------------------------------------------------------------------


def test_the_usual_penalty_falls_with_images_and_reaches_far_up() -> None:
    penalties = [usual_penalty("ridge", images, 5184) for images in (1, 10, 100, 1000, 50000)]
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[0] > 1e3
    assert penalties[-1] < 1e-6


def test_the_usual_penalty_of_few_images_is_their_mean_squared_distance_from_the_centre() -> None:
    hidden = np.random.default_rng(0).normal(size=(6, 400)) + 3
    sums = taught(hidden, np.repeat([0, 1, 2], 2))
    penalty = usual_penalty("ridge", 6, 400) * System(sums, "ridge").scale
    assert np.isclose(penalty, ((hidden - hidden.mean(0)) ** 2).sum(1).mean())


@pytest.mark.parametrize("kinds", [("ridge",), ("ridge", "lda")])
def test_one_image_a_class_takes_the_usual_penalty(kinds: tuple[Kind, ...]) -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 40)) + 3
    labels = np.arange(5)
    choice, head, *_ = choose(taught(hidden, labels), hidden, labels, kinds)
    assert (choice.kind, choice.left_out) == ("ridge", 0)
    assert choice.penalty == usual_penalty("ridge", 5, 40)
    assert (head.scores(hidden).argmax(1) == labels).all()


def test_one_image_a_class_makes_lda_the_nearest_mean() -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 40)) + 3
    choice, *_ = choose(taught(hidden, np.arange(5)), hidden, np.arange(5), ("lda",))
    assert choice.penalty == NEAREST


@pytest.mark.parametrize(("images", "penalties"), [(2, 1), (ENOUGH, len(FACTORS))])
def test_two_images_a_class_do_not_choose_the_penalty(
    images: int, penalties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    left_out = System.left_out

    def counted(system: System, hidden: Any, labels: Any, wanted: Any) -> Any:
        tried.append(len(wanted))
        return left_out(system, hidden, labels, wanted)

    monkeypatch.setattr(System, "left_out", counted)
    labels = np.arange(CLASSES).repeat(images)
    hidden = np.random.default_rng(0).normal(size=(len(labels), 200))
    choice, *_ = choose(taught(hidden, labels), hidden, labels)
    assert tried == [penalties]
    assert choice.left_out == len(labels)


@every_library
@every_kind
@every_width
def test_an_emphasis_is_that_of_features_multiplied_by_it(
    library: str, kind: Kind, width: int
) -> None:
    hidden, labels = world(width)
    stressed = hidden * (by := np.random.default_rng(1).uniform(1, 3, width))
    put = LIBRARIES[library]
    system = System(taught(hidden, labels, library), kind, put(by))
    plain = System(taught(stressed, labels, library), kind)
    found = np.asarray(system.head(0.3).scores(put(hidden)))
    assert np.allclose(found, np.asarray(plain.head(0.3).scores(put(stressed))))
    one = system.left_out(put(hidden), put(labels), [0.1, 3.0])
    other = plain.left_out(put(stressed), put(labels), [0.1, 3.0])
    for scores, expected in zip(one, other, strict=True):
        assert np.allclose(np.asarray(scores), np.asarray(expected))


def test_the_emphasis_on_tokens_fades_as_images_become_many() -> None:
    tokens = np.array([1.0, 0.0])
    found = np.stack([emphasis(tokens, images, 3000) for images in (1, 30, 300, 999)])
    assert (found[:, 1] == 1).all()
    assert np.isclose(found[0, 0], 2, atol=0.01)
    assert (np.diff(found[:, 0]) < 0).all()
    assert found[-1, 0] < 1.2
    assert emphasis(tokens, 1000, 3000) is None


@pytest.mark.parametrize("kinds", [("ridge",), ("lda",), ("ridge", "lda")])
def test_images_that_are_all_the_same_do_no_harm(kinds: tuple[Kind, ...]) -> None:
    duplicated = np.random.default_rng(0).normal(size=(2, 30))[[0] * 4 + [1] * 4]
    constant = np.ones((8, 30))
    labels = np.array([0] * 4 + [1] * 4)
    narrow = sums_at_rest(constant[:, :5], labels)  # with more images than columns
    assert (narrow.scatter.square() == 0).all()
    for hidden in (duplicated, constant):
        sums = taught(hidden, labels)
        _, head, scores, _, tried, *_ = choose(sums, hidden, labels, kinds)
        assert np.isfinite(head.scores(hidden)).all()
        unit = unit_of(head, sums.means_CM)
        assert np.isfinite(Temperature().after(scores / unit, tried).value)
    _, head, *_ = choose(taught(duplicated, labels), duplicated, labels, kinds)
    assert (head.scores(duplicated).argmax(1) == labels).all()


@every_library
def test_one_class_alone_is_always_the_answer(library: str) -> None:
    hidden, labels = np.random.default_rng(0).normal(size=(6, 12)), np.zeros(6, dtype=np.int64)
    put = LIBRARIES[library]
    _, head, *_ = choose(taught(hidden, labels, library), put(hidden), put(labels), KINDS)
    assert (np.asarray(head.scores(put(hidden))) == 0).all()


def test_leave_one_out_finds_what_new_images_confirm() -> None:
    """Only a large penalty can be right here: classes differ along one of many directions."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    signal = np.where(labels == 0, -1.0, 1.0)[:, None] * np.eye(300)[0] * 6
    hidden = rng.normal(size=(40, 300)) + signal
    choice, head, *_ = choose(taught(hidden, labels), hidden, labels)
    new_labels = np.arange(1000) % 2
    new = (
        rng.normal(size=(1000, 300))
        + np.where(new_labels == 0, -6.0, 6.0)[:, None] * np.eye(300)[0]
    )
    right = (head.scores(new).argmax(1) == new_labels).mean()
    assert right > 0.95
    assert abs(choice.accuracy - right) < 0.1


def test_a_given_penalty_is_kept() -> None:
    hidden, labels = world(8)
    choice, *_ = choose(taught(hidden, labels), hidden, labels, penalty=0.7)
    assert choice.penalty == 0.7
    assert choice.left_out == len(labels)


def test_many_images_take_the_usual_penalty_untried() -> None:
    hidden, labels = world(8, 8 * MANY + 1)
    choice, *_ = choose(taught(hidden, labels), hidden, labels)
    assert choice.penalty == usual_penalty("ridge", taught(hidden, labels).typical, 8)
    assert choice.left_out == len(labels)  # for the temperature


# at rest -------------------------------------------------------------------------------------


@every_library
@pytest.mark.parametrize("images", [9, 24, 300])
def test_sums_at_rest_wake_as_they_were(library: str, images: int) -> None:
    hidden, labels = world(20, max(images, 2 * CLASSES))
    sums = taught(hidden, labels, library)
    again = pooled(20, sums.means_CM)
    awake(again, at_rest(sums, "float64"))
    assert np.allclose(np.asarray(again.scatter.square()), np.asarray(sums.scatter.square()))
    assert np.allclose(np.asarray(again.means_CM), np.asarray(sums.means_CM))
    assert (np.asarray(again.counts_C) == np.asarray(sums.counts_C)).all()


def test_half_precision_costs_little_where_the_matrix_itself_would_break() -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.linspace(0, -3, 40)  # eigenvalues over six orders of magnitude
    turn, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    hidden = (rng.normal(size=(400, 40)) * scales) @ turn
    labels = np.arange(400) % CLASSES
    sums = taught(hidden, labels)
    exact = System(sums, "ridge").head(1e-4).scores(hidden)
    rested = pooled(40, hidden)
    awake(rested, at_rest(sums, "float16"))
    rounded = System(rested, "ridge").head(1e-4).scores(hidden)
    assert np.abs(rounded - exact).max() < 0.02 * np.abs(exact).max()
    assert np.linalg.eigvalsh(rested.scatter.square()).min() >= -1e-12
    assert np.linalg.eigvalsh(sums.scatter.square().astype(np.float16).astype(float)).min() < 0


def test_a_factor_is_a_triangle_and_no_image_is_a_row_of_it() -> None:
    hidden, labels = world(50, 12)
    resting = at_rest(taught(hidden, labels), "float16")
    rows = 12  # fewer than 50: not more than there are images
    assert len(resting["factor"]) == rows * 50 - rows * (rows - 1) // 2
    many = at_rest(taught(*world(50, 300)), "float16")
    assert len(many["factor"]) == 50 * 51 // 2
    sums = pooled(50, hidden)
    awake(sums, at_rest(taught(hidden, labels), "float64"))
    kept = sums.scatter.rows()
    means = np.stack([hidden[labels == c].mean(0) for c in range(CLASSES)])
    apart = hidden - means[labels]
    cosines = (
        kept
        @ apart.T
        / np.maximum(np.linalg.norm(kept, axis=1)[:, None] * np.linalg.norm(apart, axis=1), 1e-12)
    )
    assert np.abs(cosines[1:]).max() < 0.99


@every_library
def test_what_rests_stays_as_it_is_when_more_is_taught(library: str) -> None:
    hidden, labels = world(6)
    put = LIBRARIES[library]
    sums = taught(hidden, labels, library)
    resting = at_rest(sums, "float64")
    before = {name: np.asarray(array).copy() for name, array in resting.items()}
    awake(sums, resting)
    sums.add(put(hidden), put(labels))
    assert all(np.array_equal(before[name], np.asarray(array)) for name, array in resting.items())


# class by class ------------------------------------------------------------------------------


def test_records_of_full_rank_are_the_pooled_scatter() -> None:
    hidden, labels = world(10, 60)
    sums = classwise(10, 10, hidden)
    sums.add(hidden, labels)
    assert np.allclose(sums.scatter.square(), taught(hidden, labels).scatter.square())


def test_a_record_keeps_its_diagonal_and_its_leading_directions() -> None:
    hidden, labels = world(10, 60)
    sums = classwise(10, 2, hidden)
    sums.add(hidden, labels)
    whole = taught(hidden, labels).scatter.square()
    assert np.allclose(np.diag(sums.scatter.square()), np.diag(whole))
    coarse = classwise(10, 1, hidden)
    coarse.add(hidden, labels)
    off = [np.linalg.norm(s.scatter.square() - whole) for s in (sums, coarse)]
    assert off[0] < off[1]


def test_a_class_taken_out_of_records_was_never_there() -> None:
    hidden, labels = world(10, 60)
    sums, without = classwise(10, 3, hidden), classwise(10, 3, hidden)
    sums.add(hidden, labels)
    first = labels < 3
    without.add(hidden[first], labels[first])
    assert isinstance(sums.scatter, ClasswiseScatter)
    sums.scatter.directions_CRM = sums.scatter.directions_CRM[:3]
    sums.scatter.rest_CM = sums.scatter.rest_CM[:3]
    assert np.allclose(sums.scatter.square(), without.scatter.square())


def test_records_of_two_models_merge_class_by_class() -> None:
    hidden, labels = world(10, 60)
    whole, part, other = (classwise(10, 10, hidden) for _ in range(3))
    whole.add(hidden, labels)
    part.add(hidden[:25], labels[:25])
    other.add(hidden[25:], labels[25:])
    part.merge(other)
    assert isinstance(whole.scatter, ClasswiseScatter)
    assert isinstance(part.scatter, ClasswiseScatter)
    for label in range(CLASSES):
        records = (whole.scatter, part.scatter)
        scatters = [r.directions_CRM[label].T @ r.directions_CRM[label] for r in records]
        assert np.allclose(*scatters)


def test_a_class_taught_in_two_lessons_has_one_record() -> None:
    hidden, labels = world(10, 60)
    sums = classwise(10, 10, hidden)
    sums.add(hidden[:25], labels[:25])
    sums.add(hidden[25:], labels[25:])
    assert np.allclose(sums.scatter.square(), taught(hidden, labels).scatter.square())
    again = classwise(10, 10, hidden)
    awake(again, at_rest(sums, "float64"))
    assert np.allclose(again.scatter.square(), sums.scatter.square())


# drift and the lift --------------------------------------------------------------------------


@every_library
@pytest.mark.parametrize("width", [6, 60])
def test_sums_follow_a_linear_drift_exactly(library: str, width: int) -> None:
    rng = np.random.default_rng(0)
    hidden, labels = world(width)
    moved_by = np.eye(width) + 0.3 * rng.normal(size=(width, width)) / width**0.5
    shift = rng.normal(size=width)
    put = LIBRARIES[library]
    sums = taught(hidden, labels, library)
    lesson = rng.normal(size=(3 * width, width))  # they span the features
    sums.follow(put(lesson), put(lesson @ moved_by + shift), penalty=1e-12)
    after = taught(hidden @ moved_by + shift, labels)
    assert np.allclose(np.asarray(sums.means_CM), after.means_CM, atol=1e-6)
    assert np.allclose(np.asarray(sums.scatter.square()), after.scatter.square(), atol=1e-5)


def test_sums_follow_a_shift_of_images_that_are_all_the_same() -> None:
    hidden, labels = world(6)
    sums, before = taught(hidden, labels), taught(hidden, labels)
    sums.follow(np.ones((4, 6)), np.ones((4, 6)) * 3)
    assert np.allclose(sums.means_CM, before.means_CM + 2)
    assert np.allclose(sums.scatter.square(), before.scatter.square())


def test_the_lift_is_the_same_in_numpy_and_torch_and_for_every_batch() -> None:
    feats = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    weights = depth_weights([0, 3], [4, 8], 4)
    by_numpy = Lift(weights, 9, 7, feats)(feats)
    by_torch = Lift(weights, 9, 7, torch.tensor(feats))(torch.tensor(feats))
    assert by_numpy.shape == (5, 21)
    assert np.allclose(by_numpy, by_torch.numpy(), atol=1e-5)
    assert not np.allclose(by_numpy[:, 12:], Lift(weights, 9, 8, feats)(feats)[:, 12:])
    assert np.array_equal(Lift(weights, 0, 7, feats)(feats), feats * weights.astype(np.float32))


def test_weights_fall_with_depth() -> None:
    weights = depth_weights([0, 1, 2, 3], [1, 1, 1, 1], 4)
    assert weights.tolist() == [1 / 8, 1 / 4, 1 / 2, 1.0]
    of_stages = depth_weights([1, 3, 3], [2, 1, 3], 4)  # levels may have unequal widths
    assert of_stages.tolist() == [1 / 4, 1 / 4, 1.0, 1.0, 1.0, 1.0]


def test_few_rows_become_a_square_when_they_are_many() -> None:
    scatter = PooledScatter(4, np.zeros(0))
    rows = np.random.default_rng(0).normal(size=(9, 4))
    for row in rows:
        scatter.add(row[None], np.zeros(1, dtype=np.int64))
        assert (scatter.rows() is not None) == (len(scatter.factor()) < 4)
    assert np.allclose(scatter.square(), rows.T @ rows)
    assert np.allclose(scatter.factor().T @ scatter.factor(), rows.T @ rows)


def test_sums_of_a_shard_join_by_the_numbers_of_their_classes() -> None:
    """Two classes of another numbering, of which one is new, and none in between."""
    rng = np.random.default_rng(0)
    hidden_NM, labels_N = rng.normal(size=(40, 9)), rng.integers(0, 2, 40)
    whole, part = classwise(9, 12, np.zeros(0)), classwise(9, 12, np.zeros(0))
    before = rng.normal(size=(10, 9)), np.full(10, 1)
    whole.add(*before)
    part.add(*before)
    whole.add(hidden_NM, np.array([4, 1])[labels_N])
    shard = classwise(9, 12, np.zeros(0))
    shard.add(hidden_NM, labels_N)
    part.merge(from_compact(compact(shard), 12), [4, 1])
    assert part.classes == whole.classes == 5
    assert np.array_equal(part.counts_C, whole.counts_C)
    assert np.allclose(part.means_CM, whole.means_CM, atol=1e-12)
    assert np.allclose(part.scatter.square(), whole.scatter.square(), atol=1e-9)


def test_a_compact_shard_has_the_directions_that_are_there() -> None:
    rng, sums = np.random.default_rng(1), classwise(20, 16, np.zeros(0))
    sums.add(rng.normal(size=(23, 20)), np.repeat([0, 1, 2], [3, 19, 1]))
    small = compact(sums)
    assert small["ranks"].tolist()[1:] == [16, 0]
    assert small["ranks"][0] in (2, 3)  # the third is zero, or nearly so
    assert len(small["directions"]) == small["ranks"].sum()
    again = from_compact(small, 16)
    assert np.array_equal(again.scatter.directions_CRM[1:], sums.scatter.directions_CRM[1:])
    assert np.allclose(again.scatter.square(), sums.scatter.square(), atol=1e-12)

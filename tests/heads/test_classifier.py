"""A closed-form classifier that learns, without torch and with it: the same answers, and resume."""

from typing import Any

import numpy as np
import pytest
import torch

from dafuse.errors import DafuseError
from dafuse.heads.choice import FACTORS, Evidence, choose, usual_penalty
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.closed_form import Kind
from dafuse.heads.lifting import Lift
from dafuse.heads.resting import Precision
from dafuse.heads.sums import classwise, pooled

WIDTH, CLASSES = 12, 4
LIBRARIES: dict[str, Any] = {"numpy": np.asarray, "torch": torch.tensor}


def lessons(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(CLASSES, WIDTH))
    made = []
    for _ in range(count):
        labels = np.concatenate([np.arange(CLASSES), rng.integers(0, CLASSES, 20)])
        feats = rng.normal(size=(len(labels), WIDTH)) + centres[labels]
        made.append((feats.astype(np.float32), labels))
    return made


def empty(library: str, precision: Precision = "float16", keep: str = "pooled") -> ClosedForm:
    like = LIBRARIES[library](np.zeros(0, np.float32))
    lift = Lift(np.ones(WIDTH), 5, 7, like)
    sums = pooled(lift.width, like) if keep == "pooled" else classwise(lift.width, 3, like)
    return ClosedForm(lift, sums, ["ridge"], None, precision, like)


def taught(library: str, **options: Any) -> ClosedForm:
    put, found = LIBRARIES[library], empty(library, **options)
    for feats, labels in lessons():
        found.learn(put(feats), put(labels))
    return found


@pytest.mark.parametrize("keep", ["pooled", "classwise"])
@pytest.mark.parametrize("precision", ["float16", "float64"])
def test_numpy_and_torch_answer_alike(keep: str, precision: Precision) -> None:
    feats, _ = lessons(4)[3]
    options = {"keep": keep, "precision": precision}
    by_numpy = taught("numpy", **options).logits(feats)
    by_torch = taught("torch", **options).logits(torch.tensor(feats)).numpy()
    assert by_numpy.dtype == by_torch.dtype == np.float32
    assert np.allclose(by_numpy, by_torch, atol=1e-3 * np.abs(by_torch).max())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loaded_classifier_goes_on_with_the_same_bits(library: str) -> None:
    put, (feats, labels) = LIBRARIES[library], lessons(4)[3]
    whole = taught(library)
    again = empty(library)
    again.load_state(whole.state())
    for found in (whole, again):
        found.learn(put(feats), put(labels))
    first, second = whole.state(), again.state()
    assert first.keys() == second.keys()
    assert all(np.array_equal(np.asarray(first[k]), np.asarray(second[k])) for k in first)


@pytest.mark.parametrize("library", LIBRARIES)
def test_any_number_of_leading_axes(library: str) -> None:
    found, feats = taught(library), LIBRARIES[library](lessons(1)[0][0][:24])
    flat = np.asarray(found.logits(feats))
    shaped = np.asarray(found.logits(feats.reshape(2, 3, 4, WIDTH)))
    assert np.allclose(shaped.reshape(24, CLASSES), flat, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_features_that_are_not_numbers_are_refused_and_nothing_is_lost(library: str) -> None:
    put, found = LIBRARIES[library], taught(library)
    before = found.state()
    with pytest.raises(DafuseError, match="not finite"):
        found.observe(put(np.full((2, WIDTH), np.nan, np.float32)), put(np.array([0, 1])))
    after = found.state()
    assert all(np.array_equal(np.asarray(before[k]), np.asarray(after[k])) for k in before)


@pytest.mark.parametrize("keep", ["pooled", "classwise"])
def test_images_left_out_of_noise_are_right_by_chance_alone(keep: str) -> None:
    """This holds also where records hold a part of what an image brought."""
    rng = np.random.default_rng(5)
    found = empty("numpy", keep=keep)
    labels = np.repeat(np.arange(CLASSES), 250)
    found.learn(rng.normal(size=(len(labels), WIDTH)).astype(np.float32), labels)
    assert found.choice.left_out == len(labels)
    assert found.choice.accuracy == pytest.approx(1 / CLASSES, abs=0.05)


def test_what_is_said_of_old_records_stays_when_images_are_left_out() -> None:
    """A lesson whose images are tried leaves the records of other classes as they were."""
    found = taught("numpy", keep="classwise")
    before = {name: array[:CLASSES].copy() for name, array in found.resting.items()}
    rng = np.random.default_rng(6)
    new = (rng.normal(size=(20, WIDTH)) + 3).astype(np.float32)
    found.learn(new, np.full(20, CLASSES))
    assert all(np.array_equal(before[name], found.resting[name][:CLASSES]) for name in before)


def test_what_lessons_before_said_of_a_penalty_counts() -> None:
    rng = np.random.default_rng(7)
    labels, width = np.repeat(np.arange(CLASSES), 6), 200  # so few images that many are tried
    feats = rng.normal(size=(len(labels), width)) + rng.normal(size=(CLASSES, width))[labels]
    sums = pooled(width, feats)
    sums.add(feats, labels)
    alone = choose(sums, feats, labels)
    gains, tried = np.zeros((2, len(FACTORS) + 1)), np.zeros((2, len(FACTORS) + 1))
    tried[0, : len(FACTORS)], gains[0, 5] = 1000, 100  # the fifth penalty was the best by far
    found = choose(sums, feats, labels, before=Evidence(gains, tried))
    usual = usual_penalty("ridge", sums.typical, width)
    assert found.choice.penalty == pytest.approx(usual * FACTORS[5])
    assert alone.choice.penalty != pytest.approx(usual * FACTORS[5])
    assert found.evidence.tried_KF[0, 5] == 1000 + len(labels)
    both = found.evidence + alone.evidence
    assert both.tried_KF[0, 3] == 1000 + 2 * len(labels)
    assert both.gains_KF[0, 3] == 0  # the usual penalty, which others are measured by


@pytest.mark.parametrize("keep", ["pooled", "classwise"])
def test_evidence_is_kept_and_added_up(keep: str) -> None:
    one, other = taught("numpy", keep=keep), taught("numpy", keep=keep)
    again = empty("numpy", keep=keep)
    again.load_state(one.state())
    assert np.array_equal(again.evidence.array(), one.evidence.array())
    expected = one.evidence.array() + other.evidence.array()
    one.merge(other, range(CLASSES))
    assert np.array_equal(one.evidence.array(), expected)


def chosen(kinds: list[Kind], images: int) -> ClosedForm:
    """A classifier of these kinds, of classes whose images vary most where they do not differ."""
    like, rng = np.zeros(0, np.float32), np.random.default_rng(3)
    lift = Lift(np.ones(WIDTH), 0, 7, like)
    sums = classwise(lift.width, 3, like)
    found = ClosedForm(lift, sums, kinds, None, "float16", like)
    labels = np.repeat(np.arange(CLASSES), images // CLASSES)
    noise = 30 * rng.normal(size=(images, 1)) * np.ones(WIDTH)  # which LDA ignores
    centres = 2 * rng.normal(size=(CLASSES, WIDTH))
    feats = noise + rng.normal(size=(images, WIDTH)) + centres[labels]
    found.learn(feats.astype(np.float32), labels)
    return found


def test_the_kind_that_was_chosen_stays_when_classes_go_or_come() -> None:
    found, other = chosen(["ridge", "lda"], 400), chosen(["ridge", "lda"], 400)
    assert found.choice.kind == "lda", "the test needs images for which LDA is better"
    found.drop([0, 1, 2])
    assert found.choice.kind == "lda"
    assert found.temperature.images == other.temperature.images > 0
    found.merge(other, [3, 4, 5, 6])
    assert (found.choice.kind, len(found.bias_C)) == ("lda", 7)
    assert found.temperature.images == 2 * other.temperature.images


def test_merging_two_kinds_takes_that_of_which_more_images_speak() -> None:
    few, many = chosen(["ridge"], 40), chosen(["lda"], 400)
    few.merge(many, [4, 5, 6, 7])
    assert few.choice.kind == "lda"
    assert few.temperature == many.temperature

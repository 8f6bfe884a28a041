"""Probabilities of closed-form classifiers."""

import math

import numpy as np
import pytest
import torch

from dafuse.heads.closed_form import Linear
from dafuse.heads.confidence import (
    QuickTemperature,
    Temperature,
    Threshold,
    best_temperature,
    calibrated,
    unit_of,
)


def test_the_temperature_gives_the_least_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    scores = rng.normal(size=(400, 5)) + 1.5 * np.eye(5)[labels]

    def loss(temperature: float) -> float:
        exps = np.exp(scores / temperature)
        return float(-np.log(exps[np.arange(400), labels] / exps.sum(1)).mean())

    found = best_temperature(scores, labels)
    assert all(loss(found) <= loss(found * factor) + 1e-4 for factor in (0.8, 0.95, 1.05, 1.25))
    sure = best_temperature(100 * np.eye(5)[labels], labels)
    assert 0 < sure < np.inf


def test_logits_are_those_of_the_formula_in_either_library() -> None:
    scores = np.array([[0.9, -0.2, 0.1]])
    wanted = np.arcsinh(6 * scores) / math.asinh(6) * math.sqrt(math.log(3)) / 0.2
    assert np.allclose(calibrated(scores, 0.2), wanted)
    assert np.allclose(calibrated(torch.tensor(scores), 0.2).numpy(), wanted)
    assert (calibrated(scores, 0.2).argsort() == scores.argsort()).all()


def test_a_unit_lies_between_a_class_mean_and_the_others() -> None:
    """Own scores 2 and 6, others -1 and -3: 4 less -2."""
    means = np.eye(2)
    head = Linear(np.array([[2.0, -3.0], [-1.0, 6.0]]), np.zeros(2))
    assert unit_of(head, means) == pytest.approx(6)
    shrunk = Linear(head.weights_MC / 1000, head.bias_C)
    assert unit_of(shrunk, means) == pytest.approx(6 / 1000)
    assert unit_of(Linear(np.zeros((2, 2)), np.zeros(2)), means) == 1
    assert unit_of(Linear(np.zeros((2, 1)), np.zeros(1)), means[:1]) == 1


def test_lessons_are_weighed_by_their_images() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    scores = 0.3 * rng.normal(size=(500, 4)) + np.eye(4)[labels]
    best = best_temperature(calibrated(scores, 1.0), labels)
    start = Temperature()
    once = start.after(scores, labels)
    assert once.images == 500
    together = start.trust * math.log(start.value) + 500 * math.log(best)
    assert math.log(once.value) == pytest.approx(together / (start.trust + 500))
    many = once
    for _ in range(1000):
        many = many.after(scores, labels)
    assert many.value == pytest.approx(best, rel=0.02)
    assert start.after(scores[:0], labels[:0]) == start
    assert start.after(np.zeros((3, 1)), np.zeros(3, dtype=np.int64)) == start


@pytest.mark.parametrize(("kind", "trust"), [(Temperature, 3000), (QuickTemperature, 100)])
def test_lessons_and_merges_trust_a_start_alike(kind: type[Temperature], trust: int) -> None:
    """A lesson weighs its images against trust in a start, a merge each model's against half."""
    one, other = kind(0.1, 100), kind(0.4, 300)
    shares = (trust / 2 + 100, trust / 2 + 300)
    together = (shares[0] * math.log(0.1) + shares[1] * math.log(0.4)) / (trust + 400)
    joined = one.joined(other)
    assert math.log(joined.value) == pytest.approx(together)
    assert (type(joined), joined.images) == (kind, 400)
    labels = np.arange(20) % 2
    scores = 0.3 * np.random.default_rng(0).normal(size=(20, 2)) + np.eye(2)[labels]
    best = best_temperature(calibrated(scores, 1.0), labels)
    after = one.after(scores, labels)
    together = ((trust + 100) * math.log(0.1) + 20 * math.log(best)) / (trust + 120)
    assert math.log(after.value) == pytest.approx(together)
    assert type(after) is kind


def test_what_is_known_is_kept_as_numbers() -> None:
    temperature, threshold = QuickTemperature(0.3, 7), Threshold(2.5, 40.5, 6)
    numbers = {**temperature.numbers(), **threshold.numbers(), "threshold": 2.5}
    assert QuickTemperature.from_numbers(numbers) == temperature
    assert Threshold.from_numbers(numbers, 9) == threshold
    older = {"threshold": 2.5, "threshold_images": 20.0}
    assert Threshold.from_numbers(older, 9) == Threshold(2.5, 20.0, 9)

"""Metrics against hand-computed ones."""

import math

import pytest

from dafuse.engine.matrix import DEFINITIONS, AccuracyMatrix


def matrix() -> AccuracyMatrix:
    m = AccuracyMatrix()
    m.add([9], [10])
    m.add([8, 3], [10, 5])
    m.add([5, 4, 20], [10, 5, 20])
    return m


def test_both_weightings() -> None:
    m = matrix()
    assert m.curve_per_sample() == pytest.approx([90, 100 * 11 / 15, 100 * 29 / 35])
    assert m.curve_per_task() == pytest.approx([90, (80 + 60) / 2, (50 + 80 + 100) / 3])
    metrics = m.metrics()
    assert metrics["average"] == pytest.approx((90 + 1100 / 15 + 2900 / 35) / 3)
    assert metrics["final"] == pytest.approx(2900 / 35)
    assert metrics["average_per_task"] == pytest.approx((90 + 70 + 230 / 3) / 3)
    assert metrics["final_per_task"] == pytest.approx(230 / 3)


def test_stability_plasticity_forgetting() -> None:
    metrics = matrix().metrics()
    assert metrics["stability"] == pytest.approx((50 + 80) / 2)
    assert metrics["plasticity"] == pytest.approx((90 + 60 + 100) / 3)
    assert metrics["forgetting"] == pytest.approx(((90 - 50) + (80 - 80)) / 2)
    assert metrics.keys() == DEFINITIONS.keys()


def test_one_task_and_tasks_without_test_images() -> None:
    m = AccuracyMatrix()
    m.add([3], [4])
    assert m.metrics()["final"] == 75
    assert math.isnan(m.metrics()["stability"])
    m.add([3, 0], [4, 0])
    assert m.metrics()["final_per_task"] == 75
    empty = AccuracyMatrix()
    empty.add([0], [0])
    assert math.isnan(empty.metrics()["average"])


def test_rows_must_grow() -> None:
    with pytest.raises(ValueError, match="row 0"):
        AccuracyMatrix().add([1, 2], [2, 2])

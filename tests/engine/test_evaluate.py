"""Counts of a method's test."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dafuse.engine.evaluate import evaluate
from dafuse.errors import DafuseError
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


class Stubborn(SimpleNamespace):
    """Likes the last of four classes best, then the second, whatever it sees."""

    def predictions(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"": torch.tensor([[0.0, 1.0, 0.0, 2.0]]).expand(len(images), 4)}


def test_counts_now_and_among_the_classes_of_then() -> None:
    dataset = small_dataset([3, 3, 3, 3])
    trainer: Any = small_trainer(dataset)
    stream = small_stream(dataset, [2, 2])
    found = evaluate(Stubborn(), trainer, [task.test for task in stream], 4)  # type: ignore[arg-type]
    each = [
        int((task.test.labels == label).sum()) for task, label in zip(stream, (1, 3), strict=True)
    ]
    assert found.correct == [0, each[1]]
    assert found.correct_then == each  # as long as there were two classes, the second was right
    assert found.confusion[:, :3].sum() == 0
    total = sum(found.total)
    sure = math.exp(2) / (2 + math.e + math.exp(2))
    assert found.calibration_error == pytest.approx(abs(sure - each[1] / total), abs=1e-6)


def test_probabilities_that_are_no_numbers_are_refused_in_a_sentence() -> None:
    """A method that diverged gives them, and a checkpoint that somebody changed."""

    class Diverged(SimpleNamespace):
        def predictions(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"": torch.full((len(images), 2), torch.nan)}

    dataset = small_dataset([3, 3])
    tests = [task.test for task in small_stream(dataset, [2])]
    trainer: Any = small_trainer(dataset)
    with pytest.raises(DafuseError, match="probabilities of the test images are not finite"):
        evaluate(Diverged(), trainer, tests, 2)  # type: ignore[arg-type]


def test_without_test_images_nothing_is_counted() -> None:
    dataset = small_dataset([3, 3])
    trainer: Any = small_trainer(dataset)
    empty = small_stream(dataset, [2])[0].test.take([])  # type: ignore[arg-type]
    found = evaluate(Stubborn(), trainer, [empty], 2)  # type: ignore[arg-type]
    assert (found.correct, found.correct_then, found.calibration_error) == ([0], [0], None)

"""Training does what methods ask of it: optimiser, rates, weight decay, and new crops."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dafuse.methods.schedule import Group, Schedule
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def sgd_by_hand(start: float, rates: list[float]) -> float:
    value, velocity = start, 0.0
    for rate in rates:
        velocity = 0.8 * velocity + (1 + 0.3 * value)  # a slope of 1, and weight decay
        value -= rate * velocity
    return value


def adam_by_hand(start: float, rates: list[float]) -> float:
    value, mean, square = start, 0.0, 0.0
    for step, rate in enumerate(rates, 1):
        slope = 1 + 0.3 * value
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        mean_now, square_now = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        value -= rate * mean_now / (square_now**0.5 + 1e-8)
    return value


@pytest.mark.parametrize(("optimiser", "by_hand"), [("sgd", sgd_by_hand), ("adam", adam_by_hand)])
def test_training_does_what_it_is_asked_for(
    optimiser: Any, by_hand: Callable[[float, list[float]], float]
) -> None:
    dataset = small_dataset([4])  # two batches an epoch
    trainer, task = small_trainer(dataset), small_stream(dataset, [1])[0]
    fast, slow = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-1.0))
    groups, falls = [Group([fast]), Group([slow], 0.1)], [1.0, 0.5, 0.25]
    schedule = Schedule(3, 2, 0.2, 0.3, 0.8, optimiser, decay=lambda epoch, epochs: falls[epoch])
    trainer.fit(task, None, lambda images, labels: fast + slow, groups, schedule)
    rates = [0.2 * factor for factor in falls for _ in range(2)]
    assert fast.item() == pytest.approx(by_hand(2.0, rates), rel=1e-5)
    assert slow.item() == pytest.approx(by_hand(-1.0, [rate / 10 for rate in rates]), rel=1e-5)


def test_epochs_before_give_other_crops() -> None:
    dataset = small_dataset([4])
    trainer, task = small_trainer(dataset), small_stream(dataset, [1])[0]
    parameter = nn.Parameter(torch.tensor(0.0))

    def crops(epochs: int, before: int) -> list[Tensor]:
        seen: list[Tensor] = []

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            seen.append(images.clone())
            return parameter * 1

        schedule = Schedule(epochs, 4, 0.1)
        trainer.fit(task, None, loss, [Group([parameter])], schedule, epochs_before=before)
        return seen

    first, second = crops(2, 0)
    (again,) = crops(1, 1)
    assert torch.equal(again, second)
    assert not torch.equal(again, first)

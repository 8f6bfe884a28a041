"""Finetune: which rows compete in the loss, and what is trained at which rate."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dafuse.engine.trainer import Trainer
from dafuse.methods.finetune import Finetune
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def second_task(monkeypatch: pytest.MonkeyPatch, local_ce: bool) -> tuple:
    """The rows, the value of the loss and the images as the second task's training begins."""
    dataset = small_dataset([6] * 5)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 3])
    method = Finetune(trainer=trainer, epochs=1, batch_size=8, local_ce=local_ce)
    method.learn(stream[0])
    asked: dict[str, Any] = {}

    def fit(self: Trainer, task: Any, attached: Any, loss: Any, groups: Any, schedule: Any) -> None:
        asked.update(loss=loss, rows=groups[0].parameters[-1], schedule=schedule)

    monkeypatch.setattr(Trainer, "fit", fit)
    method.learn(stream[1])
    images, labels = next(iter(trainer.batches(stream[1].train)))
    value = asked["loss"](images, labels)
    value.backward()
    with torch.no_grad():
        scores = method.logits(images)  # nothing was trained: these are the training's logits
    return asked, value.item(), scores, labels


def test_the_local_loss_is_blind_to_old_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, value, scores, labels = second_task(monkeypatch, local_ce=True)
    gradient = asked["rows"].grad
    assert gradient.shape == (5, 25)
    assert gradient[:2].count_nonzero() == 0
    assert (gradient[2:].norm(dim=1) > 0).all()
    assert value == pytest.approx(F.cross_entropy(scores[:, 2:], labels - 2).item(), rel=1e-5)


def test_the_loss_over_all_classes_pushes_old_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, value, scores, labels = second_task(monkeypatch, local_ce=False)
    assert (asked["rows"].grad.norm(dim=1) > 0).all()
    assert value == pytest.approx(F.cross_entropy(scores, labels).item(), rel=1e-5)


def test_old_rows_shrink_by_weight_decay_alone() -> None:
    dataset = small_dataset([6] * 4)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 2])
    method = Finetune(trainer=trainer, epochs=1, batch_size=8, weight_decay=0.0)
    method.learn(stream[0])
    before = method.weights_CE.clone()
    method.learn(stream[1])
    assert torch.equal(method.weights_CE[:2], before)


def test_the_rate_is_constant_and_the_decay_that_of_later_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = second_task(monkeypatch, local_ce=True)[0]["schedule"]
    assert [schedule.decay(epoch, 20) for epoch in range(20)] == [1.0] * 20
    assert schedule.weight_decay == 2e-4

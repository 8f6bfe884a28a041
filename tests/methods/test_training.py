"""The head that adapters are trained with and that is then thrown away: APER, RanPAC, EASE."""

import math
from typing import Any

import pytest
import torch

from dafuse.data.stream import Task
from dafuse.engine.trainer import Trainer
from dafuse.heads.cosine import uniform_init
from dafuse.methods.schedule import Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter, init_class_weights
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

SCHEDULE = Schedule(epochs=2, batch_size=4, lr=0.05)


def world() -> tuple[Trainer, Task]:
    """A task in the middle of a stream, with three classes."""
    dataset = small_dataset([4, 3, 5, 4, 3])
    return small_trainer(dataset), small_stream(dataset, [2, 3])[1]


def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, Task, dict[str, Any]]:
    """Return what training is asked to do; it is not done."""
    found: dict[str, Any] = {}

    def fit(task: Task, attached: Any, loss: Any, groups: Any, schedule: Schedule) -> None:
        (group,) = groups
        found.update(adapter=attached, loss=loss, rate=group.rate, schedule=schedule)
        *found["trained"], found["rows"], found["scale"] = group.parameters

    trainer, task = world()
    monkeypatch.setattr(trainer, "fit", fit)
    fit_with_proxy(trainer, task, init_adapter(trainer, 0, rank=4), SCHEDULE)
    return trainer, task, found


def test_rows_and_scale_start_as_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, task, found = asked(monkeypatch)
    start = init_class_weights(trainer, task.index, 3, init=uniform_init)
    assert torch.equal(found["rows"].detach(), start)
    assert 0.9 / math.sqrt(24) < start.abs().max() <= 1 / math.sqrt(24)
    assert found["scale"].item() == 1


def test_adapter_rows_and_scale_are_trained_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, found = asked(monkeypatch)
    adapter = list(found["adapter"].parameters())
    assert [id(p) for p in found["trained"]] == [id(p) for p in adapter]
    assert found["rate"] == 1
    assert found["schedule"] == SCHEDULE


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, task, found = asked(monkeypatch)
    ((images, labels),) = trainer.batches(task.train)
    feats, rows, scale = trainer.encode(images, found["adapter"]), found["rows"], found["scale"]
    with torch.no_grad():
        scale.fill_(3.0)
    terms = []
    for feature, label in zip(feats, labels, strict=True):
        exps = [torch.exp(3 * torch.cosine_similarity(feature, row, dim=0)) for row in rows]
        terms.append(-torch.log(exps[int(label) - 2] / sum(exps)))
    value = found["loss"](images, labels)
    assert value.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-4)
    value.backward()
    assert scale.grad.abs() > 0
    assert (rows.grad.abs().sum(1) > 0).all()


def test_training_moves_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, task = world()
    train, scales = trainer.fit, []

    def fit(task: Task, attached: Any, loss: Any, groups: Any, schedule: Schedule) -> None:
        train(task, attached, loss, groups, schedule)
        scales.append(groups[0].parameters[-1])

    monkeypatch.setattr(trainer, "fit", fit)
    adapter = init_adapter(trainer, 0, rank=4)
    before = adapter.tensors()
    fit_with_proxy(trainer, task, adapter, SCHEDULE)
    (scale,) = scales
    assert scale.dim() == 0
    assert scale.item() != 1
    assert not torch.equal(adapter.tensors()["up.weight"], before["up.weight"])

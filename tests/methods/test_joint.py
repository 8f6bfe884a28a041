"""Joint training: all images seen, from the same start each time, one softmax over all classes."""

from typing import Any

import numpy as np
import pytest
import torch

from dafuse.data.stream import Stream
from dafuse.engine.trainer import Trainer
from dafuse.methods.joint import Joint
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "adapter_rank": 4, "lr": 1e-3}
both = pytest.mark.parametrize("tune", ["adapter", "full"])


def make(tune: str) -> tuple[Joint, Stream, Trainer]:
    dataset = small_dataset([6, 1, 5, 4])
    trainer = small_trainer(dataset)
    method = Joint(trainer=trainer, tune=tune, **QUICK)  # type: ignore[arg-type]
    return method, small_stream(dataset, [2, 2]), trainer


@both
def test_every_task_starts_again(tune: str) -> None:
    """Only the images of an earlier training matter, not what else it left behind."""
    taught, stream, _ = make(tune)
    for task in stream:
        taught.learn(task)
    told, stream, _ = make(tune)
    told.memory.add(stream[0].train)
    told.learn(stream[1])
    assert all(torch.equal(tensor, told.state()[key]) for key, tensor in taught.state().items())


@both
def test_trains_on_all_images_over_all_classes(tune: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, stream, trainer = make(tune)
    method.learn(stream[0])
    asked: dict[str, Any] = {}

    def fit(self: Trainer, task: Any, attached: Any, loss: Any, groups: Any, *_: Any, **k: Any):
        asked.update(k, loss=loss, parameters=groups[0].parameters)

    monkeypatch.setattr(Trainer, "fit", fit)
    method.learn(stream[1])
    seen = asked["images"]
    assert sorted(seen.index) == list(range(16))
    assert np.array_equal(np.bincount(seen.labels), [6, 1, 5, 4])
    ((images, labels),) = trainer.batches(seen)
    asked["loss"](images, labels).backward()
    *tuned, rows = asked["parameters"]
    assert rows.shape == (4, 25)
    assert (rows.grad.norm(dim=1) > 0).all()
    assert sum(p.grad is not None for p in tuned) == len(tuned)


@both
def test_only_what_is_tuned_is_kept(tune: str) -> None:
    method, stream, trainer = make(tune)
    method.learn(stream[0])
    modules = sum(t.numel() for k, t in method.state().items() if k.startswith("modules/"))
    network = sum(p.numel() for p in trainer.network.parameters())
    adapter = 3 * (4 * 24 + 4 + 24 * 4 + 24)
    assert modules == (adapter if tune == "adapter" else network)

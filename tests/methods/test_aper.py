"""APER: class means in two networks' features, and no training after the first task."""

import torch

from dafuse.heads.cosine import cosine_logits
from dafuse.methods.aper import APER
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def learned(tasks: int) -> tuple:
    dataset = small_dataset([5, 4, 6, 3])
    trainer = small_trainer(dataset)
    method = APER(trainer=trainer, epochs=2, batch_size=4, adapter_rank=4, lr=5.0)
    stream = small_stream(dataset, [2, 2])
    for task in list(stream)[:tasks]:
        method.learn(task)
    return method, trainer, stream


def test_only_the_first_task_trains() -> None:
    method, trainer, stream = learned(1)
    before = method.adapter.tensors()
    assert before["up.weight"].abs().max() > 0  # it was trained at all
    losses = len(trainer.epoch_losses)
    method.learn(stream[1])
    assert len(trainer.epoch_losses) == losses
    assert all(torch.equal(before[k], t) for k, t in method.adapter.tensors().items())


def test_rows_are_class_means_of_both_networks_side_by_side() -> None:
    method, trainer, stream = learned(2)
    width = trainer.network.width
    for task in stream:
        frozen, labels = trainer.features(task.train, None)
        adapted, _ = trainer.features(task.train, method.adapter)
        assert not torch.allclose(frozen, adapted, atol=1e-3)
        for c in range(task.first, task.seen):
            row = method.weights_CE[c]
            assert torch.allclose(row[:width], frozen[labels == c].mean(0), atol=1e-5)
            assert torch.allclose(row[width:], adapted[labels == c].mean(0), atol=1e-5)


def test_predictions_use_both_networks() -> None:
    method, trainer, stream = learned(2)
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        both = torch.cat([trainer.network(images), trainer.network(images, method.adapter)], dim=1)
        expected = cosine_logits(both, method.weights_CE)
        assert torch.allclose(method.logits(images), expected, atol=1e-4)

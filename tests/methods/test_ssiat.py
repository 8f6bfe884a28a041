"""SSIAT: the drift of old means, and what training and alignment may touch."""

import math

import pytest
import torch

from dafuse.methods import ssiat
from dafuse.methods.ssiat import SSIAT, drifted
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK = {"epochs": 1, "first_epochs": 1, "batch_size": 4, "adapter_rank": 4, "align_samples": 8}


def by_hand(mean: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    weights = [
        math.exp(-sum((a - b) ** 2 for a, b in zip(x.tolist(), mean.tolist(), strict=True)) / 32)
        + 1e-5
        for x in before
    ]
    pairs = zip(weights, after - before, strict=True)
    return mean + sum(w * moved for w, moved in pairs) / sum(weights)


@pytest.mark.parametrize("chunk", [1, 2, 128])
def test_means_move_as_the_images_near_them(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(ssiat, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(5, 4, generator=generator)
    before = 3 * torch.randn(9, 4, generator=generator)
    after = before + torch.randn(9, 4, generator=generator)
    expected = torch.stack([by_hand(mean, before, after) for mean in means])
    assert torch.allclose(drifted(means, before, after), expected, atol=1e-5)


def test_a_near_image_counts_more_than_a_far_one() -> None:
    before = torch.tensor([[1.0, 0.0], [100.0, 0.0]])
    after = before + torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    moved = drifted(torch.tensor([[0.0, 0.0], [99.0, 0.0]]), before, after)
    assert torch.allclose(moved, torch.tensor([[0.0, 1.0], [99.0, -1.0]]), atol=1e-3)


def test_far_from_every_image_a_mean_moves_as_all_do() -> None:
    """The floor decides; without it the weights would be 0 / 0."""
    before = torch.tensor([[0.0, 0.0], [5.0, 0.0]])
    after = before + torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    moved = drifted(torch.full((1, 2), 1000.0), before, after)
    assert torch.allclose(moved, torch.tensor([[1000.0, 1002.0]]))


def learned(**options: float) -> tuple:
    dataset = small_dataset([5, 4, 6, 3, 4])
    trainer = small_trainer(dataset)
    method = SSIAT(trainer=trainer, **{**QUICK, **options})
    stream = small_stream(dataset, [2, 2, 1])
    method.learn(stream[0])
    return method, trainer, stream


def test_training_leaves_old_rows_alone() -> None:
    method, _, stream = learned(align_epochs=0)
    before = method.weights_CD.clone()
    method.learn(stream[1])
    assert torch.equal(method.weights_CD[:2], before)


def test_alignment_moves_every_row_from_the_second_task_on() -> None:
    plain, _, stream = learned(align_epochs=0)
    method, _, same_stream = learned(align_epochs=2)
    assert torch.equal(plain.weights_CD, method.weights_CD)
    plain.learn(stream[1])
    method.learn(same_stream[1])
    assert ((plain.weights_CD - method.weights_CD).abs().amax(1) > 0).all()


def test_the_adapter_goes_on_and_old_means_follow_it() -> None:
    method, trainer, stream = learned(lr=0.05)
    adapter, means = method.adapter.tensors(), method.classes.tensors["mean"].clone()
    factor = method.classes.tensors["factor"].clone()
    before, _ = trainer.features(stream[1].train, method.adapter)
    diagnosis = method.learn(stream[1])
    after, labels = trainer.features(stream[1].train, method.adapter)
    now = method.adapter.tensors()
    assert all(not torch.equal(now[name], adapter[name]) for name in adapter)
    assert torch.allclose(now["down.weight"], adapter["down.weight"], atol=0.1)  # no new start
    kept = method.classes.tensors["mean"]
    assert torch.allclose(kept[:2], drifted(means, before, after), atol=1e-5)
    assert torch.allclose(kept[2], after[labels == 2].mean(0), atol=1e-5)
    assert not torch.allclose(kept[:2], means, atol=1e-4)
    assert torch.equal(method.classes.tensors["factor"][:2], factor)  # covariances stay
    assert diagnosis["drift_of_means"] == pytest.approx(
        float((kept[:2] - means).norm(dim=1).mean())
    )


def test_the_task_of_each_class_is_remembered() -> None:
    method, _, stream = learned()
    method.learn(stream[1])
    method.learn(stream[2])
    assert method.task_of_C.tolist() == [0, 0, 1, 1, 2]

"""EASE: prototypes synthesised in subspaces that a class never saw, and what each counts."""

import math

import torch
from torch.nn import functional as F

from dafuse.methods.ease import EASE, subspace_weights, synthesise
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def random_true(sizes: list[int], width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Measured prototypes: those of a class exist in the subspaces up to its own task."""
    task_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(sum(sizes), len(sizes), width, generator=generator)
    measured = torch.arange(len(sizes)) <= task_of[:, None]
    return true * measured[:, :, None], task_of


def test_two_tasks_by_hand() -> None:
    true = torch.zeros(3, 2, 2)
    true[0, 0] = torch.tensor([2.0, 0.0])  # the old class, in its own subspace
    true[1] = torch.tensor([[3.0, 0.0], [1.0, 5.0]])  # cosine 1 with the old class
    true[2] = torch.tensor([[0.0, 4.0], [7.0, -2.0]])  # cosine 0
    full = synthesise(true, torch.tensor([0, 1, 1]))
    weight = math.e / (math.e + 1)
    expected = weight * true[1, 1] + (1 - weight) * true[2, 1]
    assert torch.allclose(full[0, 1], expected)
    assert torch.equal(full[0, 0], true[0, 0])
    assert torch.equal(full[1:], true[1:])


def test_unequal_tasks_against_loops() -> None:
    true, task_of = random_true([2, 3, 1, 2])
    full = synthesise(true, task_of)
    for c, own in enumerate(task_of.tolist()):
        for j in range(4):
            if j <= own:
                expected = true[c, j]
            else:
                later = [n for n in range(8) if task_of[n] >= j]
                cosines = [F.cosine_similarity(true[c, own], true[n, own], dim=0) for n in later]
                weights = torch.softmax(torch.stack(cosines), dim=0)
                expected = sum(w * true[n, j] for w, n in zip(weights, later, strict=True))
            assert torch.allclose(full[c, j], expected, atol=1e-5), (c, j)


def test_own_subspace_counts_fully_and_the_others_share() -> None:
    assert torch.equal(subspace_weights(torch.tensor([0, 0]), 1, 0.1), torch.ones(2, 1))
    weights = subspace_weights(torch.tensor([0, 2]), 3, 0.1)
    assert torch.allclose(weights, torch.tensor([[1.0, 0.05, 0.05], [0.05, 0.05, 1.0]]))


def test_logits_are_the_weighted_cosines_of_every_subspace() -> None:
    dataset = small_dataset([5] * 5)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 3])
    method = EASE(trainer=trainer, epochs=1, batch_size=8, adapter_rank=4, cross_weight=0.4)
    for task in stream:
        method.learn(task)
    ((images, _),) = trainer.batches(stream[1].test)
    full = synthesise(method.true_CKD, method.task_of_C)
    with torch.no_grad():
        feats = trainer.encode(images, method.bank)
        cosines = torch.cosine_similarity(feats[:, None], full[None], dim=3)  # [B, C, K]
        first, second = cosines.unbind(2)
        expected = torch.where(torch.arange(5) < 2, first + 0.4 * second, second + 0.4 * first)
        assert torch.allclose(method.logits(images), 20 * expected, atol=1e-4)


def test_learning_leaves_earlier_adapters_and_prototypes_alone() -> None:
    dataset = small_dataset([5] * 4)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 2])
    method = EASE(trainer=trainer, epochs=1, batch_size=8, adapter_rank=4)
    method.learn(stream[0])
    adapter, rows = method.bank[0]["up.weight"].clone(), method.true_CKD.clone()
    method.learn(stream[1])
    assert torch.equal(method.bank[0]["up.weight"], adapter)
    assert torch.equal(method.true_CKD[:2, :1], rows)
    assert not method.true_CKD[:2, 1].any()
    fresh = method.bank[1]["down.weight"] - method.bank[0]["down.weight"]
    assert fresh.abs().mean() > 0.05  # another random start, not the last task's adapter

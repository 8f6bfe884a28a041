"""MOS: merging once a step, the loss of old rows, and the prediction that refines itself."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dafuse.heads.linear import linear_logits
from dafuse.methods.mos import MOS, apart, refine
from helpers.method_probes import cross_entropy_by_hand, loss_at_the_start
from helpers.small_runs import small_learned

QUICK: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "adapter_rank": 4, "align_epochs": 2, "align_samples": 16
}  # fmt: skip


def learned(sizes: list[int], tasks: int | None = None, **options: Any) -> tuple:
    return small_learned(MOS, sizes, tasks, **(QUICK | options))


def test_refining_jumps_to_the_predicted_task_until_stable() -> None:
    # three adapters, one class each; feature of an image under an adapter = whom it votes for
    votes = {0: [0, 0, 1], 1: [1, 2, 2], 2: [1, 0, 2]}  # image -> class under adapters 0, 1, 2
    feats = torch.stack([F.one_hot(torch.tensor(v), 3).float() for v in votes.values()])
    rows = F.pad(torch.eye(3), (0, 1))
    start = torch.tensor([2, 0, 0])
    task_of = torch.arange(3)

    def ends(rounds: int) -> list[int]:
        return refine(start, feats, rows, task_of, rounds).tolist()

    assert ends(0) == [2, 0, 0]
    assert ends(1) == [1, 1, 1]
    assert ends(2) == [0, 2, 0]
    assert ends(3) == [0, 2, 1]  # the first two are stable, the third goes round in circles
    assert ends(4) == [0, 2, 0]


def test_refining_against_a_loop_over_images() -> None:
    generator = torch.Generator().manual_seed(0)
    feats = torch.randn(30, 4, 6, generator=generator)
    rows = torch.randn(9, 7, generator=generator)
    task_of = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3])
    start = torch.randint(4, (30,), generator=generator)
    expected = []
    for image, task in zip(feats, start.tolist(), strict=True):
        for _ in range(4):
            found = int(task_of[linear_logits(image[task], rows).argmax()])
            if found == task:
                break
            task = found
        expected.append(task)
    assert refine(start, feats, rows, task_of, 4).tolist() == expected
    assert expected != start.tolist()


def test_every_vector_is_told_from_the_others() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]])
    terms = []
    for i in range(3):
        exps = [torch.exp(vectors[i] @ other / 0.8) for other in vectors]
        terms.append(-torch.log(exps[i] / sum(exps)))
    assert torch.allclose(apart(vectors), torch.stack(terms).mean())
    assert apart(20 * torch.eye(3)) < 1e-6


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over the new classes alone, and class means and features are told from each other."""
    method, trainer, stream = learned([2, 2], tasks=1, orth=0.7)
    means = method.classes.tensors["mean"].clone()
    found, (*_, rows) = loss_at_the_start(method, stream[1], monkeypatch)
    ((images, labels),) = trainer.batches(stream[1].train)
    with torch.no_grad():
        feats = trainer.encode(images, method.adapter)
    own = cross_entropy_by_hand(feats, rows, labels, first=2)
    vectors = torch.cat([means, feats])
    similar = vectors @ vectors.T / 0.8
    orth = -torch.log_softmax(similar, dim=1).diagonal().mean()
    assert len(vectors) == 2 + 10
    assert orth > 0.01
    assert found == pytest.approx(own + 0.7 * orth.item(), rel=1e-4)


def test_full_merging_ends_at_the_mean_of_the_stored_adapters() -> None:
    method, *_ = learned([2, 2, 1], merge=1.0)
    first, second, third = (method.bank[k] for k in range(3))
    for name in first:
        assert torch.allclose(second[name], first[name], atol=1e-6)
        assert torch.allclose(third[name], (first[name] + second[name]) / 2, atol=1e-6)


def test_merging_happens_once_a_step() -> None:
    """Without a learning rate, the distance to the mean shrinks by 1 - merge at every step."""
    method, _, stream = learned([2, 2, 2], tasks=2)
    shift = {name: tensor + 1 for name, tensor in method.bank[1].items()}
    method.bank.append(shift)
    middle = method.bank.mean()
    method.lr, method.epochs = 0.0, 3
    method.learn(stream[2])
    steps = 3 * 2  # ten images in batches of eight
    for name, tensor in method.adapter.tensors().items():
        expected = middle[name] + 0.9**steps * (shift[name] - middle[name])
        assert torch.allclose(tensor, expected, atol=1e-5)


def test_without_merging_tasks_warm_start() -> None:
    method, *_ = learned([2, 2], merge=0.0, lr=1e-6)
    first, second = method.bank[0], method.bank[1]
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


def test_old_rows_change_by_alignment_only() -> None:
    before, *_ = learned([2, 2], tasks=1, align_epochs=0)
    after, *_ = learned([2, 2], align_epochs=0)
    assert torch.equal(before.weights_CE, after.weights_CE[:2])
    aligned, *_ = learned([2, 2])
    assert not torch.equal(before.weights_CE, aligned.weights_CE[:2])


def test_prediction_adds_two_probabilities() -> None:
    method, trainer, stream = learned([2, 2, 1])
    ((images, _),) = trainer.batches(stream[1].test)
    with torch.no_grad():
        scores = method.logits(images)
        feats = trainer.encode(images, method.bank)
    assert torch.allclose(scores.sum(1), torch.full((len(images),), 2.0), atol=1e-5)
    cosines = torch.cosine_similarity(feats[:, :1], method.prototypes_CD[None], dim=2)
    task = refine(
        method.task_of_C[cosines.argmax(1)], feats, method.weights_CE, method.task_of_C, 4
    )
    own = torch.stack(
        [linear_logits(f[k], method.weights_CE) for f, k in zip(feats, task, strict=True)]
    )
    expected = own.softmax(1) + (3 * cosines).softmax(1)
    assert torch.allclose(scores, expected, atol=1e-5)


def test_prototypes_are_those_of_the_first_adapter() -> None:
    method, trainer, stream = learned([2, 2])
    feats, labels = trainer.features(stream[1].train, method.bank.take([0]))
    for c in (2, 3):
        assert torch.allclose(method.prototypes_CD[c], feats[labels == c, 0].mean(0), atol=1e-5)

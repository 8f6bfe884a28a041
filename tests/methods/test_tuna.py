"""TUNA: max-fusion, the loss with the overlap of adapters, and its three ways to predict."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.heads.alignment import align
from dafuse.heads.cosine import cosine_logits
from dafuse.heads.gaussians import Sampler
from dafuse.methods.tuna import TUNA, max_fusion, mean_directions, overlap
from helpers.method_probes import loss_at_the_start
from helpers.small_runs import small_learned

QUICK: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "adapter_rank": 4, "align_epochs": 2, "align_samples": 16
}  # fmt: skip


def learned(sizes: list[int], tasks: int | None = None, **options: Any) -> tuple:
    return small_learned(TUNA, sizes, tasks, **(QUICK | options))


def test_max_fusion_by_hand() -> None:
    stacked = torch.tensor(
        [
            [3.0, -1.0, 1.0, 0.0, -4.0, -3.0],
            [1.0, -5.0, -1.0, 0.0, 1.0, 2.0],
            [-2.0, 2.0, 0.0, 0.0, 2.0, 2.0],
        ]
    )
    # the third number has mean zero, which counts as minus; the fifth has its sign from one
    # outlier; in the sixth the largest magnitude has the wrong sign
    expected = torch.tensor([3.0, -5.0, -1.0, 0.0, -4.0, 2.0])
    assert torch.equal(max_fusion({"x": stacked})["x"], expected)


def test_max_fusion_of_one_is_that_one() -> None:
    one = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(max_fusion({"x": one})["x"], one[0])


def test_overlap_is_over_all_pairs_of_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(2, 5, 3, generator=generator)  # [L, D, r]
    stored = torch.randn(4, 2, 5, 3, generator=generator)
    expected = 0.0
    for other in stored:
        layers = []
        for u, v in zip(own, other, strict=True):
            pairs = [torch.cosine_similarity(p, q, dim=0) for p in u for q in v]
            layers.append(torch.stack(pairs).mean().abs())
        expected += torch.stack(layers).mean().item()
    found = overlap(mean_directions([own]), mean_directions([stored]))
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_overlap_moves_only_the_adapter_in_training() -> None:
    own = torch.randn(2, 5, 3, requires_grad=True)
    stored = torch.randn(4, 2, 5, 3, requires_grad=True)
    overlap(mean_directions([own]), mean_directions([stored])).backward()
    assert own.grad is not None
    assert own.grad.abs().sum() > 0
    assert stored.grad is None
    zero = torch.zeros(2, 5, 3, requires_grad=True)
    (1e-3 * overlap(mean_directions([zero]), mean_directions([stored]))).backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()


def test_the_blocks_of_all_stages_count_alike() -> None:
    """Stages have different widths; a block's mean direction has as many numbers as ranks."""
    generator = torch.Generator().manual_seed(0)
    own = [torch.randn(blocks, width, 3, generator=generator) for blocks, width in ((1, 4), (3, 8))]
    stored = [torch.randn(2, *up.shape, generator=generator) for up in own]
    together = overlap(mean_directions(own), mean_directions(stored))
    each = [
        overlap(mean_directions([up]), mean_directions([of_stage]))
        for up, of_stage in zip(own, stored, strict=True)
    ]
    assert mean_directions(stored).shape == (2, 4, 3)
    assert together.item() == pytest.approx((1 * each[0] + 3 * each[1]).item() / 4, abs=1e-6)


@pytest.mark.parametrize("number", [2, 3])
def test_the_loss_by_hand(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CosFace with the margin, and the overlap at a weight that falls by e with each task."""
    method, trainer, stream = learned([2, 2, 2], number - 1, lr=0.05, margin=0.3, orth=50.0)
    task = stream[number - 1]
    found, (*_, rows) = loss_at_the_start(method, task, monkeypatch)
    ((images, labels),) = trainer.batches(task.train)
    feats = trainer.encode(images, method.adapter)
    cosines = F.cosine_similarity(feats[:, None], rows[None], dim=2)
    terms = []
    for row, label in zip(cosines, labels - task.first, strict=True):
        own = torch.exp(20 * (row[label] - 0.3))
        others = sum(torch.exp(20 * c) for j, c in enumerate(row) if j != label)
        terms.append(-torch.log(own / (own + others)))

    overlaps = []
    for stored in range(number - 1):
        pairs = zip(method.adapter.up.weight, method.bank[stored]["up.weight"], strict=True)
        layers = [(F.normalize(u, dim=1) @ F.normalize(v, dim=1).T).mean().abs() for u, v in pairs]
        overlaps.append(torch.stack(layers).mean())
    apart = 50.0 * math.exp(-number) * torch.stack(overlaps).sum()
    assert apart > 0.01
    expected = torch.stack(terms).mean() + apart
    assert found == pytest.approx(expected.item(), rel=1e-4)


def test_stored_adapters_and_old_rows_stay() -> None:
    before, *_ = learned([2, 2], tasks=1, align_epochs=0)
    after, *_ = learned([2, 2], align_epochs=0)
    assert all(torch.equal(before.bank[0][name], after.bank[0][name]) for name in after.bank[0])
    assert torch.equal(before.weights_CD, after.weights_CD[:2])
    aligned, *_ = learned([2, 2])
    assert not torch.equal(before.weights_CD, aligned.weights_CD[:2])


def test_orthogonality_and_decay_are_switches() -> None:
    default, *_ = learned([2, 2])
    loose, *_ = learned([2, 2], orth=0.0)
    assert not torch.equal(default.bank[1]["up.weight"], loose.bank[1]["up.weight"])
    shrunk, *_ = learned([2, 2], decay=True)
    assert torch.equal(default.bank[1]["up.weight"], shrunk.bank[1]["up.weight"])
    assert not torch.equal(default.weights_CD, shrunk.weights_CD)


def test_the_rate_of_the_alignment_rises_again_after_its_period() -> None:
    sampler = Sampler(torch.eye(3), 0.1 * torch.eye(3).expand(3, 3, 3), None)
    rows = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.5, 0.0, 1.0]])

    def rows_after(epochs: int, period: int | None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return align(rows, sampler, generator, epochs, samples=8, lr=0.1, period=period)

    assert torch.equal(rows_after(6, period=5), rows_after(5, None))  # the sixth is at rate zero
    assert not torch.allclose(rows_after(7, period=5), rows_after(5, None))
    assert torch.equal(rows_after(7, period=7), rows_after(7, None))


def test_the_three_ways_to_predict() -> None:
    method, trainer, _ = learned([2, 2, 1], lr=0.05)
    images = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def probabilities(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        vit = trainer.network
        adapter = Adapter(vit.depth, vit.width, 4).set(tensors).eval()
        return cosine_logits(trainer.encode(images, adapter), method.weights_CD).softmax(1)

    with torch.no_grad():
        found = method.predictions(images)
        tasks = torch.stack([probabilities(method.bank[k]) for k in range(3)], dim=1)
        universal = probabilities(max_fusion(method.bank.stacked))
    entropy = torch.special.entr(tasks).sum(2)
    certain = torch.stack([p[k] for p, k in zip(tasks, entropy.argmin(1), strict=True)])
    more_certain = torch.special.entr(universal).sum(1) < entropy.min(1).values
    assert more_certain.any()  # and yet it is no candidate
    assert list(found) == ["paper", "universal", "released"]
    assert torch.allclose(found["paper"], universal + certain, atol=1e-4)
    assert torch.allclose(found["universal"], universal, atol=1e-4)
    assert torch.allclose(found["released"], tasks[:, -1] + certain, atol=1e-4)


@pytest.mark.parametrize(("predict", "passes"), [("paper", 3), ("universal", 1), ("released", 3)])
def test_the_chosen_way_comes_first_and_has_its_cost(predict: Any, passes: int) -> None:
    default, trainer, stream = learned([2, 2])
    method, *_ = learned([2, 2], predict=predict)
    assert method.passes(2, {"predict": predict}) == passes
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        found, expected = method.predictions(images), default.predictions(images)[predict]
    assert next(iter(found)) == predict
    assert torch.allclose(method.logits(images), expected, atol=1e-5)


def test_after_one_task_all_ways_agree() -> None:
    method, trainer, stream = learned([3])
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        paper, universal, released = method.predictions(images).values()
    assert torch.allclose(paper, 2 * universal, atol=1e-5)
    assert torch.allclose(F.normalize(released, p=1), universal, atol=1e-5)

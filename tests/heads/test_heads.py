"""Prototypes, class Gaussians and alignment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dafuse.heads.alignment import Step, align, cosine_gradient
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.heads.gaussians import ENOUGH, JITTER, ClassMemory


def features(counts: list[int], width: int = 6, seed: int = 0, first: int = 0) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(len(counts), width, width, generator=generator)
    shift = 3 * torch.randn(len(counts), width, generator=generator)
    parts = [
        torch.randn(n, width, generator=generator) @ mix[c] + shift[c] for c, n in enumerate(counts)
    ]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return torch.cat(parts), labels + first


def test_prototypes_are_class_means() -> None:
    feats, labels = features([3, 1, 5], first=4)
    rows = prototypes(feats, labels, first=4, classes=3)
    for c in range(3):
        assert torch.allclose(rows[c], feats[labels == 4 + c].mean(0), atol=1e-5)


def test_cosine_logits_ignore_lengths() -> None:
    feats, _ = features([4])
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    other_lengths = cosine_logits(5 * feats, 0.1 * rows)
    assert torch.allclose(cosine_logits(feats, rows), other_lengths, atol=1e-5)
    by_hand = 20 * torch.cosine_similarity(feats[:, None], rows[None], dim=2)
    assert torch.allclose(cosine_logits(feats, rows), by_hand, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_full_memory_keeps_mean_and_covariance(dtype: torch.dtype) -> None:
    feats, labels = features([40, 30])
    memory = ClassMemory(6, "full", dtype=dtype)
    memory.add(feats, labels, 0, 2)
    covariance = memory.sampler(torch.device("cpu")).covariance()
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    for c in range(2):
        expected = torch.cov(feats[labels == c].T) + JITTER * torch.eye(6)
        assert torch.allclose(covariance[c], expected, rtol=tolerance, atol=tolerance)


def test_diagonal_and_low_rank_keep_every_variance() -> None:
    feats, labels = features([50])
    exact = torch.cov(feats.T)
    for kind in ("diagonal", "low_rank"):
        memory = ClassMemory(6, kind, rank=2)
        memory.add(feats, labels, 0, 1)
        kept = memory.sampler(torch.device("cpu")).covariance()[0]
        assert torch.allclose(kept.diagonal(), exact.diagonal(), rtol=1e-3, atol=1e-3)
    all_of_it = ClassMemory(6, "low_rank", rank=6)
    all_of_it.add(feats, labels, 0, 1)
    assert torch.allclose(all_of_it.sampler(torch.device("cpu")).covariance()[0], exact, atol=1e-2)


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank"])
def test_samples_have_the_stored_mean_and_covariance(kind: str) -> None:
    feats, labels = features([60, 60])
    memory = ClassMemory(6, kind, rank=3)
    memory.add(feats, labels, 0, 2)
    sampler = memory.sampler(torch.device("cpu"))
    drawn = sampler.draw(20000, torch.Generator().manual_seed(0))
    expected = sampler.covariance()
    for c in range(2):
        spread = expected[c].diagonal().max().item()
        assert torch.allclose(drawn[c].mean(0), sampler.mean_CD[c], atol=0.05 * spread)
        assert torch.allclose(torch.cov(drawn[c].T), expected[c], atol=0.06 * spread)


def test_another_way_to_take_the_steps_of_alignment_takes_them_all() -> None:
    memory = ClassMemory(6)
    feats, labels = features([9, 9, 9])
    memory.add(feats, labels, 0, 3)
    sampler, start = memory.sampler(torch.device("cpu")), prototypes(feats, labels, 0, 3)
    taken = []

    def faster(step: Step) -> Step:
        return lambda *batch: (taken.append(len(batch[0])), step(*batch))[1]

    plain, other = (
        align(start, sampler, torch.Generator().manual_seed(0), 2, 4, 0.1, faster=way)
        for way in (None, faster)
    )
    assert torch.equal(plain, other)
    assert taken == [4] * 3 * 2  # one of each class's size, for each class, in each epoch


def test_bytes_are_what_is_kept() -> None:
    feats, labels = features([9, 9, 9])
    per_class = {"full": 6 + 21, "diagonal": 12, "low_rank": 6 + 6 * 2 + 6}
    for kind, numbers in per_class.items():
        for dtype, size in ((torch.float32, 4), (torch.float16, 2)):
            memory = ClassMemory(6, kind, rank=2, dtype=dtype)
            memory.add(feats, labels, 0, 3)
            kept = sum(t.numel() * t.element_size() for t in memory.tensors.values())
            assert kept == 3 * numbers * size


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from(["full", "diagonal", "low_rank"]),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_tiny_classes_never_give_nan(counts: list[int], kind: str, dtype: torch.dtype) -> None:
    memory = ClassMemory(6, kind, rank=3, dtype=dtype)
    memory.add(*features(counts), 0, len(counts))
    memory.add(*features([1], seed=1, first=len(counts)), len(counts), 1)
    sampler = memory.sampler(torch.device("cpu"))
    drawn = sampler.draw(8, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()
    rows = align(sampler.mean_CD, sampler, torch.Generator().manual_seed(0), epochs=2, samples=4)
    assert rows.isfinite().all()


def test_a_class_of_one_image_borrows() -> None:
    feats, labels = features([30, 1, 20])
    memory = ClassMemory(6, "full")
    memory.add(feats, labels, 0, 3)
    covariance = memory.sampler(torch.device("cpu")).covariance()
    assert torch.allclose(covariance[1], (covariance[0] + covariance[2]) / 2, atol=1e-2)
    memory.add(*features([1], seed=5, first=3), 3, 1)  # nobody beside it: all known classes
    after = memory.sampler(torch.device("cpu")).covariance()
    assert torch.allclose(after[3], covariance.mean(0), atol=1e-2)


def test_alignment_improves_wrong_rows_and_leaves_its_input_alone() -> None:
    feats, labels = features([60] * 4, width=8, seed=3)
    memory = ClassMemory(8, "full")
    memory.add(feats, labels, 0, 4)
    rows = prototypes(feats, labels, 0, 4)
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    wrong = F.normalize(rows + 9 * noise, dim=1)
    before = wrong.clone()

    def accuracy(r: torch.Tensor) -> float:
        return (cosine_logits(feats, r).argmax(1) == labels).float().mean().item()

    sampler = memory.sampler(torch.device("cpu"))
    aligned = align(wrong, sampler, torch.Generator().manual_seed(0), epochs=20, samples=60, lr=0.1)
    assert torch.equal(wrong, before)
    assert accuracy(aligned) > accuracy(wrong) + 0.2
    again = align(wrong, sampler, torch.Generator().manual_seed(0), epochs=20, samples=60, lr=0.1)
    assert torch.equal(aligned, again)


def test_the_gradient_written_out_is_that_of_autograd() -> None:
    feats, labels = features([5, 3, 4], seed=2)
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    F.cross_entropy(cosine_logits(feats, rows), labels).backward()
    found = cosine_gradient(rows.detach(), feats, labels)
    assert torch.allclose(found, rows.grad, atol=1e-5)  # type: ignore[arg-type]


def test_alignment_is_sgd_with_momentum_decay_and_a_cosine() -> None:
    """The same samples and shuffles through torch's own optimiser and scheduler."""
    feats, labels = features([30] * 3, seed=4)
    memory = ClassMemory(6, "full")
    memory.add(feats, labels, 0, 3)
    sampler, start = memory.sampler(torch.device("cpu")), prototypes(feats, labels, 0, 3)
    found = align(start, sampler, torch.Generator().manual_seed(3), epochs=4, samples=8, lr=0.1)

    rows, generator = start.clone().requires_grad_(True), torch.Generator().manual_seed(3)
    optimiser = torch.optim.SGD([rows], lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=4)
    classes = torch.arange(3).repeat_interleave(8)
    for _ in range(4):
        order = torch.randperm(24, generator=generator)
        drawn = sampler.draw(8, generator).flatten(0, 1)
        for batch in order.split(8):
            optimiser.zero_grad()
            F.cross_entropy(cosine_logits(drawn[batch], rows), classes[batch]).backward()
            optimiser.step()
        schedule.step()
    assert torch.allclose(found, rows.detach(), atol=1e-4)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        ClassMemory(4, "dense")


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("counts", [(30, 12), (1, 5), (4, 1), (1, 1)])
def test_merging_equals_learning_all_at_once(kind: str, counts: tuple[int, int]) -> None:
    before, more = counts
    feats, labels = features([20, before + more])
    at_once = ClassMemory(6, kind)
    at_once.add(feats, labels, 0, 2)
    memory = ClassMemory(6, kind)
    memory.add(feats[: 20 + before], labels[: 20 + before], 0, 2)
    memory.merge(feats[20 + before :], 1, before)
    for name, expected in at_once.tensors.items():
        assert torch.allclose(memory.tensors[name], expected, rtol=1e-3, atol=2e-3), name
    assert torch.equal(memory.tensors["mean"][0], at_once.tensors["mean"][0])


def test_merging_never_fails_where_little_is_known() -> None:
    memory = ClassMemory(6, "full", dtype=torch.float16)
    feats, labels = features([2])
    memory.add(feats, labels, 0, 1)
    for images in range(2, 40):  # rounded to float16 each time
        memory.merge(feats[:1], 0, images)
    assert memory.sampler(torch.device("cpu")).covariance().isfinite().all()


def test_few_images_borrow_covariance_by_their_number() -> None:
    feats, labels = features([40, 4, 1])
    memory = ClassMemory(6, "full")
    memory.add(feats, labels, 0, 3)
    own = memory.sampler(torch.device("cpu")).covariance()
    lent = memory.borrowing([40, 4, 1]).sampler(torch.device("cpu")).covariance()
    pooled = (39 * own[0] + 3 * own[1]) / 42
    assert torch.allclose(lent[0], own[0], atol=1e-5)
    assert torch.allclose(lent[1], pooled * (6 / 9) + own[1] * (3 / 9), rtol=1e-2, atol=1e-2)
    assert torch.allclose(lent[2], pooled, rtol=1e-2, atol=1e-2)
    assert memory.borrowing([40, ENOUGH, 99]) is memory  # nobody has few


def test_where_every_class_has_one_image_the_means_say_how_far_things_spread() -> None:
    memory = ClassMemory(6, "full")
    memory.add(*features([1, 1, 1]), 0, 3)
    lent = memory.borrowing([1, 1, 1]).sampler(torch.device("cpu")).covariance()
    spread = memory.tensors["mean"].var(0, correction=0)
    assert torch.allclose(lent[1], torch.diag(spread), rtol=1e-2, atol=1e-2)


def test_widened_gaussians_keep_their_means() -> None:
    memory = ClassMemory(6, "low_rank", rank=2)
    memory.add(*features([30, 30]), 0, 2)
    sampler = memory.sampler(torch.device("cpu"))
    wide = sampler.widened(torch.tensor([1.0, 3.0]))
    assert torch.equal(wide.mean_CD, sampler.mean_CD)
    factors = torch.tensor([1.0, 9.0])[:, None, None]
    assert torch.allclose(wide.covariance(), sampler.covariance() * factors, rtol=1e-4)

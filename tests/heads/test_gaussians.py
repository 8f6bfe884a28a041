"""Class Gaussians: what is kept, what is drawn from them, and what few images borrow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dafuse.heads.alignment import align
from dafuse.heads.gaussians import ENOUGH, JITTER, ClassMemory
from helpers.class_features import features


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

"""AnaCP: sums over tasks give what regressions on all images at once give; targets lie apart."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.errors import DafuseError
from dafuse.heads.ridge import statistics
from dafuse.heads.sums import pooled
from dafuse.methods import anacp
from dafuse.methods.anacp import AnaCP, alike, gram_and_moments, pushed_apart
from dafuse.seeds import torch_generator
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

COUNTS = [6, 5, 4, 7]
QUICK = {"width": 20, "samples": 8, "penalty": 0.5, "precision": "float64"}


def learned(counts: list[int], sizes: list[int], **options) -> tuple:
    dataset = small_dataset(counts)
    trainer = small_trainer(dataset)
    method = AnaCP(trainer=trainer, **{**QUICK, **options})
    stream = small_stream(dataset, sizes)
    return method, trainer, stream, [method.learn(task) for task in stream]


def ridge(hidden_NM: Tensor, targets_NK: Tensor, penalty: float) -> Tensor:
    """Weights [M, K], image by image as the textbook has it."""
    return torch.linalg.solve(
        hidden_NM.T @ hidden_NM + penalty * torch.eye(hidden_NM.shape[1]).double(),
        hidden_NM.T @ targets_NK,
    )


def power(matrix: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values**exponent) @ vectors.T


@pytest.mark.parametrize("options", [{}, {"width": 60, "lifts": 2}, {"dewhiten": True}])
def test_tasks_add_up_to_regressions_on_everything(options: dict) -> None:
    method, trainer, stream, _ = learned(COUNTS, [2, 1, 1], **options)
    parts = [trainer.features(task.train, None) for task in stream]
    labels = torch.cat([labels for _, labels in parts])
    units = F.normalize(torch.cat([feats for feats, _ in parts]), dim=1).double()
    means = torch.stack([units[labels == label].mean(0) for label in range(4)])
    apart = units - means[labels]
    covariance = apart.T @ apart / len(units) + 1e-4 * torch.eye(trainer.network.width).double()
    targets = pushed_apart(means, covariance, 1.0, options.get("dewhiten", False))

    maps = []
    for random in method.random_HDM:
        hidden = F.gelu(units @ random.double())
        maps.append(ridge(hidden, targets[labels], method.penalty))  # a target for each image

    def hidden_of(features: Tensor) -> Tensor:
        projected = [
            F.normalize(F.gelu(features @ random.double()) @ weights, dim=1)
            for random, weights in zip(method.random_HDM, maps, strict=True)
        ]
        return F.gelu(torch.stack(projected).mean(0) @ method.last_DM.double())

    generator = torch_generator(trainer.seed, "anacp", "drawn")
    noise = torch.randn(4, method.samples, trainer.network.width, generator=generator)
    apart = noise @ torch.linalg.cholesky(covariance).to(noise).T
    drawn = (means[:, None].to(noise) + apart).flatten(0, 1).double()
    one_hot = F.one_hot(torch.arange(4).repeat_interleave(method.samples)).double()
    weights = ridge(hidden_of(drawn), one_hot, method.penalty)
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        encoded = F.normalize(trainer.encode(images, None), dim=1).double()
        assert torch.allclose(
            method.logits(images).double(), hidden_of(encoded) @ weights, atol=1e-3
        )
    assert torch.allclose(method.targets_CD.double(), targets, atol=1e-5)


@pytest.mark.parametrize("dewhiten", [False, True])
def test_targets_are_means_moved_along_the_nearest_orthonormal_directions(dewhiten: bool) -> None:
    """Raising every singular value by alpha adds alpha times the polar factor."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 9, generator=generator).double()
    rows = torch.randn(30, 9, generator=generator).double()
    covariance = rows.T @ rows / 30
    centre = means.mean(0)
    white = (means - centre) @ power(covariance, -0.5)
    values, vectors = torch.linalg.eigh(white.T @ white)
    values, vectors = values[-4:], vectors[:, -4:]  # five centred means span four directions
    polar = white @ vectors @ torch.diag(values**-0.5) @ vectors.T
    wanted = (white + 0.7 * polar) @ power(covariance, 0.5 if dewhiten else -0.5) + centre
    found = pushed_apart(means, covariance, 0.7, dewhiten)
    assert torch.allclose(found, wanted / wanted.norm(dim=1, keepdim=True), atol=1e-9)


def test_undone_whitening_without_repulsion_gives_the_means_back() -> None:
    means = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).double()
    covariance = torch.diag(torch.arange(1.0, 7.0)).double()
    found = pushed_apart(means, covariance, 0.0, dewhiten=True)
    assert torch.allclose(found, F.normalize(means, dim=1), atol=1e-12)


def test_targets_do_not_hang_on_rounding() -> None:
    """Centred means have a singular value of zero, beside which stands any direction at all."""
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(5, 9, generator=generator).double()
    nudged = means + 1e-13 * torch.randn(5, 9, generator=generator).double()
    covariance = torch.diag(torch.linspace(1e-3, 1, 9)).double()
    found = [pushed_apart(each, covariance, 1.0, dewhiten=False) for each in (means, nudged)]
    assert torch.allclose(*found, atol=1e-9)


def test_one_class_has_its_mean_for_a_target() -> None:
    means = torch.tensor([[3.0, 4.0]]).double()
    found = pushed_apart(means, torch.eye(2).double(), 1.0, dewhiten=False)
    assert torch.allclose(found, torch.tensor([[0.6, 0.8]]).double())


def test_repulsion_sets_means_apart_that_are_alike() -> None:
    generator = torch.Generator().manual_seed(3)
    shared = 3 * torch.randn(20, generator=generator)
    means = (shared + torch.randn(8, 20, generator=generator)).double()
    covariance = torch.eye(20).double()
    sizes = [alike(pushed_apart(means, covariance, alpha, dewhiten=True)) for alpha in (0, 1, 5)]
    assert alike(means) == pytest.approx(sizes[0])
    assert sizes[0] > sizes[1] > sizes[2]


def test_alike_is_the_mean_cosine_of_pairs() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 3.0]])
    assert alike(rows) == pytest.approx((0 + 0.5**0.5 + 0.5**0.5) / 3)
    assert alike(rows[:1]) == 0


@pytest.mark.parametrize("images", [4, 40])  # fewer, and more, than there are columns
def test_sums_about_means_give_sums_about_the_origin(images: int) -> None:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(images, 6, generator=generator).double()
    labels = torch.arange(images) % 3
    sums = pooled(6, hidden)
    sums.add(hidden, labels)
    gram, moments = gram_and_moments(sums)
    assert torch.allclose(gram, hidden.T @ hidden)
    assert torch.allclose(moments, F.one_hot(labels).double().T @ hidden)


def test_drawn_features_have_the_mean_of_their_class_and_the_covariance_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Tensor] = []

    def spy(feats_NM: Tensor, *others: Any) -> Any:
        given.append(feats_NM)
        return statistics(feats_NM, *others)

    monkeypatch.setattr(anacp, "statistics", spy)
    for _ in range(2):
        _, trainer, stream, _ = learned([9, 7], [2], samples=4000)
    feats, labels = trainer.features(stream[0].train, None)
    units = F.normalize(feats, dim=1).double()
    means = torch.stack([units[labels == label].mean(0) for label in range(2)])
    apart = units - means[labels]
    covariance = apart.T @ apart / len(units) + 1e-4 * torch.eye(trainer.network.width).double()
    variance = float(covariance.diagonal().max())
    drawn = given[0].unflatten(0, (2, 4000)).double()
    assert torch.allclose(drawn.mean(1), means, atol=0.1 * variance**0.5)
    for of_class in drawn:
        assert torch.allclose(torch.cov(of_class.T), covariance, atol=0.1 * variance)
    assert torch.equal(given[0], given[1])


def test_the_order_of_tasks_does_not_matter() -> None:
    dataset = small_dataset(COUNTS)
    stream = small_stream(dataset, [2, 2])
    found = []
    for order in ((0, 1), (1, 0)):
        method = AnaCP(trainer=small_trainer(dataset), **QUICK)
        for index in order:
            method.learn(stream[index])
        found.append(method)
    assert torch.allclose(found[0].targets_CD, found[1].targets_CD, atol=1e-6)
    assert torch.allclose(found[0].weights_CM, found[1].weights_CM, atol=1e-4)


def test_what_is_drawn_from_the_seed_is_not_kept() -> None:
    method, *_ = learned([3, 3], [2])
    other = AnaCP(trainer=small_trainer(small_dataset([3, 3])), **QUICK)
    assert torch.equal(method.last_DM, other.last_DM)
    drawn = [*method.random_HDM, method.last_DM]
    assert all(not torch.equal(one, two) for one, two in pairwise(drawn))
    assert all(t.shape != method.last_DM.shape for t in method.state().values())


@pytest.mark.parametrize(
    "options", [{"width": 0}, {"lifts": 0}, {"samples": 0}, {"penalty": 0.0}, {"jitter": 0.0}]
)
def test_what_makes_no_projection_is_refused(options: dict) -> None:
    with pytest.raises(DafuseError, match=f"method.{next(iter(options))} must be at least"):
        AnaCP(trainer=small_trainer(small_dataset([2, 2])), **options)

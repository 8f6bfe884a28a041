"""KLDA: cosines that tend to a Gaussian kernel, and LDA over them that sums over tasks give."""

import numpy as np
import pytest
import torch

from dafuse.errors import DafuseError
from dafuse.heads.lifting import Fourier
from dafuse.methods.klda import KLDA
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

COUNTS = [6, 5, 4, 7]


@pytest.mark.parametrize("gamma", [0.05, 0.5])
def test_products_tend_to_the_gaussian_kernel(gamma: float) -> None:
    feats = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    squares = ((feats[:, None] - feats) ** 2).sum(2)
    errors = []
    for width in (200, 20_000):
        hidden = Fourier(5, width, gamma, 3, feats)(feats)
        errors.append(np.abs(hidden @ hidden.T - np.exp(-gamma * squares)).max())
    assert errors[1] < 0.04 < errors[0]
    assert errors[1] < errors[0] / 4


def test_numpy_and_torch_have_the_same_cosines() -> None:
    feats = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    with_numpy = Fourier(5, 16, 0.1, 3, feats)(feats)
    with_torch = Fourier(5, 16, 0.1, 3, torch.zeros(0))(torch.from_numpy(feats))
    assert np.allclose(with_numpy, with_torch.numpy(), atol=1e-5)


@pytest.mark.parametrize("width", [8, 60])  # fewer, and more, than there are images
def test_tasks_add_up_to_lda_on_everything(width: int) -> None:
    dataset = small_dataset(COUNTS)
    trainer = small_trainer(dataset)
    method = KLDA(trainer=trainer, width=width, penalty=0.01, precision="float64")
    stream = small_stream(dataset, [2, 1, 1])
    for task in stream:
        method.learn(task)
    parts = [trainer.features(task.train, None) for task in stream]
    hidden = torch.cat([method.lift(feats) for feats, _ in parts]).double()
    labels = torch.cat([labels for _, labels in parts])
    means = torch.stack([hidden[labels == label].mean(0) for label in range(4)])
    apart = hidden - means[labels]
    inverse = torch.linalg.inv(apart.T @ apart + 0.01 * torch.eye(width).double())
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        encoded = trainer.encode(images, None)
        tested, scores = method.lift(encoded).double(), method.solved.scores(encoded).double()
    steps = tested[:, None] - means
    distances = torch.einsum("ncm,mk,nck->nc", steps, inverse, steps)
    # scores are minus the distances, but for a scale, and a number that all classes of an image
    # share
    found = scores - scores.mean(1, keepdim=True)
    wanted = -(distances - distances.mean(1, keepdim=True))
    assert torch.allclose(found / found.std(), wanted / wanted.std(), rtol=1e-3, atol=1e-3)


def test_the_order_of_tasks_does_not_matter() -> None:
    dataset = small_dataset(COUNTS)
    stream = small_stream(dataset, [2, 2])
    found = []
    for order in ((0, 1), (1, 0)):
        method = KLDA(trainer=small_trainer(dataset), width=12, penalty=0.01, precision="float64")
        for index in order:
            method.learn(stream[index])
        found.append(method.solved)
    assert torch.allclose(found[0].sums.means_CM, found[1].sums.means_CM, atol=1e-12)
    assert torch.allclose(found[0].weights_CM, found[1].weights_CM, rtol=1e-4, atol=1e-3)


def test_the_kernel_is_twice_as_wide_as_the_last_norm_makes_features_long() -> None:
    trainer = small_trainer(small_dataset([2, 2]))
    method = KLDA(trainer=trainer, width=4)
    weights = trainer.network.timm.norm.weight
    given = KLDA(trainer=trainer, width=4, gamma=1 / (8 * float((weights**2).sum())))
    feats = torch.randn(3, trainer.network.width)
    assert torch.equal(method.lift(feats), given.lift(feats))


@pytest.mark.parametrize("options", [{"width": 0}, {"gamma": 0.0}, {"penalty": -1.0}])
def test_what_makes_no_kernel_is_refused(options: dict) -> None:
    with pytest.raises(DafuseError, match=f"method.{next(iter(options))} must be at least"):
        KLDA(trainer=small_trainer(small_dataset([2, 2])), **options)

"""Per-sample gradients from one backward pass against autograd on one sample at a time."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, AdapterForEach
from dafuse.fusion.gradients import gradient_and_fisher
from dafuse.heads.cosine import cosine_logits
from helpers.small_networks import small_vit


@pytest.fixture(scope="module")
def world() -> tuple:
    vit, generator = small_vit(), torch.Generator().manual_seed(1)
    adapter = Adapter(vit.depth, vit.width, rank=5, generator=generator)
    with torch.no_grad():
        for parameter in adapter.parameters():  # biases and up-projections too
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    images = torch.randn(7, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 4, (7,), generator=generator)
    head = torch.randn(4, vit.width, generator=generator)
    return vit, adapter.eval(), images, labels, head


def loss(world: tuple, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    vit, adapter, _, _, head = world
    copies = AdapterForEach(adapter)
    copies.begin(len(images))
    logits = cosine_logits(vit(images, copies), head)
    return F.cross_entropy(logits, labels, reduction="none"), copies.own


def one_by_one(world: tuple, images: Tensor, labels: Tensor) -> list[dict[str, Tensor]]:
    vit, adapter, _, _, head = world
    gradients = []
    for image, label in zip(images, labels, strict=True):
        logits = cosine_logits(vit(image[None], adapter), head)
        value = F.cross_entropy(logits, label[None])
        names = [name for name, _ in adapter.named_parameters()]
        parts = torch.autograd.grad(value, list(adapter.parameters()))
        gradients.append(dict(zip(names, parts, strict=True)))
    return gradients


def test_exact_per_sample_fisher_and_mean_gradient(world: tuple) -> None:
    _, _, images, labels, _ = world
    batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    found = gradient_and_fisher(lambda x, y: loss(world, x, y), batches)
    singles = one_by_one(world, images, labels)
    for name in singles[0]:
        stacked = torch.stack([g[name] for g in singles])
        assert torch.allclose(found.gradient[name], stacked.mean(0), rtol=1e-4, atol=1e-6), name
        assert torch.allclose(found.fisher[name], stacked.square().mean(0), rtol=1e-3, atol=1e-7), (
            name
        )
        assert found.fisher[name].max() > 0, name
    values = loss(world, images, labels)[0]
    assert found.loss == pytest.approx(values.mean().item(), rel=1e-5)


def test_per_batch_fisher_squares_batch_means(world: tuple) -> None:
    _, _, images, labels, _ = world
    batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    found = gradient_and_fisher(lambda x, y: loss(world, x, y), batches, per_sample=False)
    singles = one_by_one(world, images, labels)
    for name in singles[0]:
        stacked = torch.stack([g[name] for g in singles])
        means = torch.stack([stacked[:4].mean(0), stacked[4:].mean(0)])
        assert torch.allclose(found.fisher[name], means.square().mean(0), rtol=1e-3, atol=1e-7)
        assert torch.allclose(found.gradient[name], stacked.mean(0), rtol=1e-4, atol=1e-6)


def test_scaling_the_loss_scales_fisher_by_the_square(world: tuple) -> None:
    _, _, images, labels, _ = world

    def scaled(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        values, own = loss(world, x, y)
        return 3 * values, own

    plain = gradient_and_fisher(lambda x, y: loss(world, x, y), [(images, labels)])
    tripled = gradient_and_fisher(scaled, [(images, labels)])
    for name in plain.fisher:
        assert torch.allclose(tripled.fisher[name], 9 * plain.fisher[name], rtol=1e-4)

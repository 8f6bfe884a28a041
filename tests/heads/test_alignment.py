"""Class weights aligned with samples of class Gaussians: their steps, and what they improve."""

import torch
from torch.nn import functional as F

from dafuse.heads.alignment import Step, align, cosine_gradient
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.heads.gaussians import ClassMemory
from helpers.class_features import features


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

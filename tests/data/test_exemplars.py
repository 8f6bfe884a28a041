"""Herding, the memory of kept images, distillation, balance, and heads that grow."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.exemplars import NOTHING, ExemplarMemory, herd, herded
from dafuse.heads.linear import grown_weights
from dafuse.heads.logits import balanced_weights, distill


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(6))
def test_herding_is_greedy_over_every_order(seed: int) -> None:
    """The order is the one whose distances to the mean are least, first to last."""
    feats = random(5, 3, seed=seed) + 1
    units = F.normalize(feats.double(), dim=1)

    def distances(order: tuple[int, ...]) -> list[float]:
        means = [units[list(order[: k + 1])].mean(0) for k in range(3)]
        return [float((units.mean(0) - mean).norm()) for mean in means]

    assert tuple(herd(feats, 3).tolist()) == min(permutations(range(5), 3), key=distances)


def test_herding_takes_no_image_twice_and_all_of_a_small_class() -> None:
    same = torch.ones(4, 3)
    assert sorted(herd(same, 4).tolist()) == [0, 1, 2, 3]
    assert sorted(herd(random(3, 5), 20).tolist()) == [0, 1, 2]


def test_herding_ignores_lengths() -> None:
    feats = random(9, 4)
    lengths = torch.linspace(0.1, 30, 9)[:, None]
    assert torch.equal(herd(feats, 5), herd(lengths * feats, 5))


def test_herded_goes_by_class_and_keeps_the_source_index() -> None:
    source = np.zeros((20, 2, 2, 3), dtype=np.uint8)
    labels = np.array([3, 4, 3, 3, 4, 3, 5])
    images = ImageSet(source, labels, np.array([10, 4, 7, 1, 19, 2, 0]))
    feats = random(7, 4)
    kept = herded(images, feats, 2)
    assert kept.labels.tolist() == [3, 3, 4, 4, 5]
    of_3 = torch.tensor([0, 2, 3, 5])
    assert kept.index[:2].tolist() == images.index[of_3[herd(feats[of_3], 2)]].tolist()
    assert kept.index[-1] == 0


def test_memory_comes_back_from_its_tensors() -> None:
    source = np.zeros((9, 2, 2, 3), dtype=np.uint8)
    memory = ExemplarMemory(ImageSet(source, NOTHING, NOTHING))
    memory.add(ImageSet(source, np.array([0, 0]), np.array([5, 3])))
    memory.add(ImageSet(source, np.array([1]), np.array([8])))
    other = ExemplarMemory(ImageSet(source, NOTHING, NOTHING))
    other.set(memory.tensors())
    joined = other.joined(ImageSet(source, np.array([2]), np.array([0])))
    assert joined.index.tolist() == [0, 5, 3, 8]
    assert joined.labels.tolist() == [2, 0, 0, 1]


def test_distillation_by_hand() -> None:
    """Teacher (3/4, 1/4) after its logits are halved, student (1/2, 1/2): the loss is ln 2."""
    teacher = torch.tensor([[2 * np.log(3.0), 0.0]])
    assert float(distill(torch.zeros(1, 2), teacher, 2.0)) == pytest.approx(np.log(2))
    student = torch.tensor([[0.0, 2 * np.log(3.0)]])  # (1/4, 3/4)
    expected = 0.75 * np.log(4) + 0.25 * np.log(4 / 3)
    assert float(distill(student, teacher, 2.0)) == pytest.approx(expected)
    # weights 1 and 3 make the teacher (1/2, 1/2)
    weighted = distill(student, teacher, 2.0, torch.tensor([1.0, 3.0]))
    assert float(weighted) == pytest.approx((np.log(4) + np.log(4 / 3)) / 2)


def test_distillation_is_least_at_the_teacher() -> None:
    teacher = random(6, 4)
    student = teacher.clone().requires_grad_(True)
    distill(student, teacher, 2.0).backward()
    assert torch.allclose(student.grad, torch.zeros(6, 4), atol=1e-6)  # type: ignore[arg-type]
    assert distill(teacher + random(6, 4, seed=1), teacher, 2.0) > distill(teacher, teacher, 2.0)


def test_balanced_weights_by_hand() -> None:
    """β = 1/2: effective numbers of 1, 2, 3 images are 1, 3/2, 7/4."""
    weights = balanced_weights(torch.tensor([1, 2, 3]), 0.5)
    inverse = torch.tensor([1.0, 2 / 3, 4 / 7])
    assert torch.allclose(weights, inverse / inverse.mean())
    assert torch.allclose(balanced_weights(torch.tensor([20, 500]), 0.0), torch.ones(2))
    rare, frequent = balanced_weights(torch.tensor([20, 500]), 0.96)
    assert rare > frequent


def test_a_grown_head_says_the_same_of_old_classes_where_new_features_are_zero() -> None:
    old, start, feats = random(2, 4), random(5, 7, seed=1), random(8, 3, seed=2)
    rows = grown_weights(start, old)
    wide = F.pad(feats, (0, 3))
    expected = F.linear(feats, old[:, :-1], old[:, -1])
    assert torch.allclose(F.linear(wide, rows[:2, :-1], rows[:2, -1]), expected, atol=1e-6)
    assert torch.equal(rows[2:], start[2:])
    assert torch.equal(rows[:2, 3:-1], start[:2, 3:-1])
    assert torch.equal(grown_weights(start, torch.zeros(0, 1)), start)

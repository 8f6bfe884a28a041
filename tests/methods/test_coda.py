"""CODA-Prompt: composed prompts, the orthogonal start, the decay, and what a task trains."""

import math

import pytest
import torch

from dafuse.backbones.prompts import PromptPrefixes
from dafuse.errors import DafuseError
from dafuse.methods.coda import (
    CODAPrompt,
    composed_prompts,
    orthonormal_to,
    overlap,
    quarter_cosine,
)
from helpers.method_probes import (
    cross_entropy_by_hand,
    loss_at_the_start,
    prompts_chosen,
    trained_from,
)
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(**options: int | float) -> tuple:
    dataset = small_dataset([4, 4, 4, 3])
    options = {"epochs": 1, "batch_size": 8, "prompt_length": 4} | options
    return CODAPrompt(trainer=small_trainer(dataset), **options), small_stream(dataset, [2, 2])


def test_a_prompt_is_the_sum_of_components_weighted_by_cosines() -> None:
    query, prompts = random(3, 6), random(2, 5, 4, 6, seed=1)
    keys, attention = random(2, 5, 6, seed=2), random(2, 5, 6, seed=3)
    pool = {"prompts": prompts, "keys": keys, "attention": attention}
    found = composed_prompts(query, pool)
    for b in range(3):
        for layer in range(2):
            expected = torch.zeros(4, 6)
            for m in range(5):
                attended = query[b] * attention[layer, m]
                weight = torch.cosine_similarity(attended, keys[layer, m], dim=0)
                expected += weight * prompts[layer, m]
            torch.testing.assert_close(found[b, layer], expected)


def test_no_attention_gives_no_prompt_and_finite_gradients() -> None:
    pool = {
        "prompts": random(1, 2, 4, 6),
        "keys": random(1, 2, 6),
        "attention": torch.zeros(1, 2, 6),
    }
    pool = {name: tensor.requires_grad_() for name, tensor in pool.items()}
    found = composed_prompts(random(3, 6), pool)
    found.sum().backward()
    assert not found.any()
    assert all(tensor.grad.isfinite().all() for tensor in pool.values())  # type: ignore[union-attr]


def gram_schmidt(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Orthonormalise by the book, vector by vector, in double."""
    basis: list[torch.Tensor] = []
    for vector in torch.cat([old, new]).double():
        for unit in basis:
            vector = vector - (vector @ unit) * unit
        basis.append(vector / vector.norm())
    return torch.stack(basis[len(old) :]).float()


@pytest.mark.parametrize("known", [0, 1, 4])
def test_new_components_are_those_of_gram_schmidt(known: int) -> None:
    old, drawn = random(2, known, 12) @ random(12, 12, seed=4), random(2, 3, 12, seed=5)
    found = orthonormal_to(old, drawn)
    for layer in range(2):
        torch.testing.assert_close(found[layer], gram_schmidt(old[layer], drawn[layer]))
        torch.testing.assert_close(found[layer] @ found[layer].T, torch.eye(3))
        if known:
            assert (found[layer] @ old[layer].T).abs().max() < 1e-4


def test_old_components_may_repeat_themselves() -> None:
    old = random(1, 2, 12).repeat(1, 2, 1)
    found = orthonormal_to(old, random(1, 3, 12, seed=5))[0]
    torch.testing.assert_close(found @ found.T, torch.eye(3))
    assert (found @ old[0].T).abs().max() < 1e-4


@pytest.mark.parametrize(("known", "room"), [(4, 2), (6, 0), (9, 0)])
def test_without_room_random_directions_of_length_one(known: int, room: int) -> None:
    old, drawn = random(1, known, 6), random(1, 5, 6, seed=5)
    found = orthonormal_to(old, drawn)
    assert found.shape == (1, 5, 6)
    torch.testing.assert_close(found.norm(dim=2), torch.ones(1, 5))
    torch.testing.assert_close(found[0, :room] @ found[0, :room].T, torch.eye(room))
    beyond = drawn[0, room:] / drawn[0, room:].norm(dim=1, keepdim=True)
    torch.testing.assert_close(found[0, room:], beyond)


def test_the_rate_falls_along_a_quarter_of_a_cosine() -> None:
    assert quarter_cosine(0, 20) == 1
    assert quarter_cosine(19, 20) == pytest.approx(math.cos(0.99 * math.pi / 2))
    assert quarter_cosine(10, 21) == pytest.approx(math.cos(0.99 * math.pi / 4))
    assert quarter_cosine(0, 1) == 1


def test_a_task_trains_its_own_components_beside_the_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, stream = make()
    method.learn(stream[0])
    first = {name: tensor.clone() for name, tensor in method.state().items()}
    *start, _ = trained_from(method, stream[1], monkeypatch)
    for (name, tensor), began in zip(method.pool.items(), start, strict=True):
        assert tensor.shape[:2] == (3, 10)
        assert torch.equal(tensor[:, :5], first[f"modules/components.{name}"])
        assert not torch.equal(tensor[:, 5:], began)
    assert torch.equal(method.weights_CE[:2], first["classifier/rows"])
    assert len(method.weights_CE) == 4


def test_the_loss_of_a_later_task_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over the new classes alone, under all components; the penalty is on all, too."""
    method, stream = make(orthogonality=0.3, lr=0.05)
    method.learn(stream[0])
    pool, vit = dict(method.pool), method.trainer.network
    found, (*own, rows) = loss_at_the_start(method, stream[1], monkeypatch)
    ((images, labels),) = method.trainer.batches(stream[1].train)
    both = {name: torch.cat([pool[name], new], dim=1) for name, new in zip(pool, own, strict=True)}
    with torch.no_grad():
        prompts = composed_prompts(vit(images), both).unflatten(2, (2, -1))
        feats = method.trainer.encode(images, PromptPrefixes(), prompts=prompts)
    penalty = sum(overlap(tensor).item() for tensor in both.values())
    assert penalty > 1e-3
    expected = cross_entropy_by_hand(feats, rows, labels, first=2) + 0.3 * penalty
    assert len(rows) == 2
    assert found == pytest.approx(expected, rel=1e-4)


def test_earlier_components_still_count() -> None:
    method, stream = make()
    method.learn(stream[0])
    method.learn(stream[1])
    images, _ = next(method.trainer.batches(stream[0].test))
    with torch.no_grad():
        before = method.logits(images)
        method.pool["prompts"][:, :5] += 1
        assert (method.logits(images) - before).abs().max() > 1e-3


def test_the_first_half_are_keys_and_the_last_half_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, stream = make()
    method.learn(stream[0])
    images, _ = next(method.trainer.batches(stream[0].test))
    with torch.no_grad():
        given = prompts_chosen(method, images, monkeypatch)
        prompts = composed_prompts(method.trainer.network(images), method.pool)
    for layer in range(3):
        keys, values = method.attached.prefix(layer, given)
        torch.testing.assert_close(keys, prompts[:, layer, :2])
        torch.testing.assert_close(values, prompts[:, layer, 2:])


def test_the_penalty_is_zero_for_orthonormal_components_alone() -> None:
    rows = orthonormal_to(torch.zeros(2, 0, 12), random(2, 3, 12)).unflatten(2, (4, 3))
    assert overlap(rows) < 1e-12
    assert overlap(2 * rows) == pytest.approx(9 * 3 / 9, abs=1e-5)  # (4 - 1)² at 3 of 9 places
    method, stream = make(orthogonality=100.0, epochs=3)
    plain, its_stream = make(epochs=3)
    method.learn(stream[0])
    plain.learn(its_stream[0])
    assert overlap(method.pool["attention"]) < overlap(plain.pool["attention"])


def test_an_odd_length_is_refused() -> None:
    with pytest.raises(DafuseError, match="prompt_length must be even, not 5"):
        make(prompt_length=5)

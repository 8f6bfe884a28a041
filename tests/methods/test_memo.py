"""MEMO: a network split in trunk and tails, what is frozen, and the loss by hand."""

import pytest
import timm
import torch
from torch.nn import functional as F

from dafuse.backbones.tails import AT_ONCE, AllTokens, Tail, TailBank, split
from dafuse.backbones.vit import ViT
from dafuse.methods.memo import MEMO
from helpers.small_datasets import small_dataset
from helpers.small_networks import PREPROCESSING, small_vit
from helpers.small_runs import small_stream, small_trainer


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def elaborate_vit() -> ViT:
    """Make a ViT of what only some have: layer scale, norms of queries and keys, no bias."""
    torch.manual_seed(0)
    settings = {"init_values": 0.5, "qk_norm": True, "qkv_bias": False, "num_classes": 0}
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    return ViT(timm.create_model("vit_tiny_patch16_224", **shape, **settings), PREPROCESSING)


@pytest.mark.parametrize("make", [small_vit, elaborate_vit])
def test_trunk_and_tail_are_the_network(make) -> None:  # type: ignore[no-untyped-def]
    vit = make()
    trunk, tail = split(vit)
    tokens = trunk(images(), AllTokens())
    assert tokens.shape == (3, vit.tokens, vit.width)
    assert torch.allclose(tail(tokens), vit(images()), atol=1e-5)
    assert trunk.depth == vit.depth - 1
    owned = sum(p.numel() for part in (trunk, tail) for p in part.parameters())
    assert owned == sum(p.numel() for p in vit.parameters())


@pytest.mark.parametrize("count", [1, AT_ONCE + 2])
def test_a_bank_of_tails_is_each_of_them(count: int) -> None:
    trunk, tail = split(small_vit())
    bank = TailBank(tail)
    expected = []
    with torch.no_grad():
        tokens = trunk(images(), AllTokens())
        for _ in range(count):
            for parameter in tail.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))
            expected.append(tail(tokens))
            bank.append(tail)
        found = trunk(images(), bank)
        assert torch.allclose(found, torch.stack(expected, dim=1), atol=1e-5)
        other = Tail(tail.block, tail.norm)
        other.load_state_dict(bank[0])
        assert torch.allclose(other(tokens), expected[0], atol=1e-6)


@pytest.fixture
def world() -> tuple:
    dataset = small_dataset([6, 5, 6, 1, 4])
    trainer = small_trainer(dataset)
    epochs = {"epochs": 1, "first_epochs": 1}
    options = {"batch_size": 8, "exemplars_per_class": 3, "auxiliary_weight": 0.3}
    return MEMO(trainer=trainer, **epochs, **options), small_stream(dataset, [2, 2, 1]), trainer


def test_later_tasks_leave_trunk_and_old_tails_alone(world: tuple) -> None:
    method, stream, trainer = world
    start = {k: v.clone() for k, v in method.trunk.state_dict().items()}
    method.learn(stream[0])
    trunk = {k: v.clone() for k, v in method.trunk.state_dict().items()}
    assert not all(torch.equal(start[k], v) for k, v in trunk.items())
    first = {k: v.clone() for k, v in method.tails[0].items()}
    method.learn(stream[1])
    method.learn(stream[2])
    assert all(torch.equal(trunk[k], v) for k, v in method.trunk.state_dict().items())
    assert all(torch.equal(first[k], v) for k, v in method.tails[0].items())
    assert any(not torch.equal(first[k], v) for k, v in method.tails[1].items())
    assert method.weights_CE.shape == (5, 3 * trainer.network.width + 1)


def test_the_loss_of_a_later_task(world: tuple) -> None:
    method, stream, trainer = world
    method.learn(stream[0])
    old_rows, width = method.weights_CE, trainer.network.width
    (batch,) = trainer.batches(method.memory.joined(stream[1].train))
    seen: dict[str, torch.Tensor] = {}

    def fit(task, attached, loss, groups, schedule, *, images) -> None:  # type: ignore[no-untyped-def]
        *_, rows, auxiliary = groups[0].parameters
        assert torch.equal(rows[:2, :width], old_rows[:, :-1])
        assert auxiliary.shape == (3, width + 1)
        found = loss(*batch)
        found.backward()
        seen.update(loss=found, rows=rows.detach(), auxiliary=auxiliary.detach())
        assert all(p.grad is None for p in method.trunk.parameters())
        assert all(p.grad is not None for p in method.tail.parameters())

    trainer.fit = fit
    for parameter in [*method.trunk.parameters(), *method.tail.parameters()]:
        parameter.grad = None
    method.learn(stream[1])
    pixels, labels = batch
    with torch.no_grad():
        tokens = method.trunk(pixels, AllTokens())
        new = method.tail(tokens)
        feats = torch.cat([method.tails.readout(tokens)[:, 0], new, torch.ones(13, 1)], dim=1)
        whole = F.cross_entropy(feats @ seen["rows"].T, labels)
        against = torch.tensor([0, 0, 1, 2])[labels]  # all old classes are one
        small = torch.cat([new, torch.ones(13, 1)], dim=1) @ seen["auxiliary"].T
        expected = whole + 0.3 * F.cross_entropy(small, against)
    assert float(seen["loss"].detach()) == pytest.approx(float(expected), abs=1e-4)

"""Prompts at their attach points: each image its own, with gradients, plain and compiled."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from dafuse.backbones.attach import Attachment
from dafuse.backbones.prompts import PromptPrefixes, PromptTokens, uniform_prompts
from dafuse.backbones.vit import ViT
from dafuse.engine.forward import Forward
from dafuse.methods.contract import Method
from dafuse.methods.dualprompt import DualPrompt
from dafuse.methods.l2p import L2P
from helpers.small_datasets import small_dataset
from helpers.small_networks import first_tokens, small_vit
from helpers.small_runs import small_stream, small_trainer

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
LENGTHS = {"tokens": (4, 24), "prefixes": (2, 2, 4, 24)}


def attachment(kind: str) -> Attachment:
    return PromptTokens(small_vit()) if kind == "tokens" else PromptPrefixes()


def some(*shape: int) -> Tensor:
    return uniform_prompts(torch.Generator().manual_seed(2), *shape)


def test_prompts_start_uniform_between_minus_one_and_one() -> None:
    drawn = some(100, 100)
    assert drawn.min() < -0.99
    assert drawn.max() > 0.99
    assert abs(drawn.mean()) < 0.02


@pytest.mark.parametrize("kind", LENGTHS)
def test_each_image_has_its_own_prompt(kind: str) -> None:
    vit, attached, prompts = small_vit(), attachment(kind), some(3, *LENGTHS[kind])
    with torch.no_grad():
        together = vit(IMAGES, attached, prompts=prompts)
        for b in range(3):
            alone = vit(IMAGES[b : b + 1], attached, prompts=prompts[b : b + 1])[0]
            torch.testing.assert_close(alone, together[b])
        others = vit(IMAGES, attached, prompts=prompts.flip(0))
        assert (others - together).abs().amax(1)[[0, 2]].min() > 0.01


def test_tokens_stand_at_the_position_of_cls_and_are_read_out() -> None:
    vit = small_vit()
    attached, prompts = PromptTokens(vit), some(3, 4, 24)
    model = vit.timm
    with torch.no_grad():
        x = first_tokens(model, IMAGES)
        extra = prompts + model.pos_embed[:, :1]
        x = model.norm(model.blocks(torch.cat([x[:, :1], extra, x[:, 1:]], dim=1)))
        torch.testing.assert_close(vit(IMAGES, attached, prompts=prompts), x[:, 1:5].mean(1))


def test_no_position_where_cls_has_none() -> None:
    vit = small_vit()
    vit.timm.no_embed_class = True
    assert not PromptTokens(vit).position_11D.any()
    assert PromptTokens(small_vit()).position_11D.any()


def test_prefixes_are_keys_then_values_of_the_first_layers() -> None:
    """Each image and layer has its own prefix; exchanged axes would give some image another's."""
    attached, prompts = PromptPrefixes(), some(3, 2, 2, 4, 24)
    for layer in range(2):
        pair = attached.prefix(layer, prompts)
        assert pair is not None
        for b in range(3):
            assert torch.equal(pair[0][b], prompts[b, layer, 0])
            assert torch.equal(pair[1][b], prompts[b, layer, 1])
    assert attached.prefix(2, prompts) is None


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """The images and prompts of each pass that would be compiled; they pass through plain code."""
    passed: list[tuple[Tensor, Tensor]] = []

    def plainly(network: ViT) -> Callable[..., Tensor]:
        def run(images: Tensor, attached: Attachment, depths: str, prompts: Tensor) -> Tensor:
            passed.append((images, prompts))
            return network(images, attached, depths, prompts)

        return run

    monkeypatch.setattr("dafuse.engine.forward.compiled", plainly)
    return passed


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.usefixtures("uncompiled")
def test_gradients_reach_what_the_prompts_are_made_of(kind: str) -> None:
    """All numbers of the chosen rows have gradients, and no other row has; filled up or not."""
    trainer, attached = small_trainer(small_dataset([3])), attachment(kind)
    pool = some(5, *LENGTHS[kind]).requires_grad_()
    grads = []
    for batch in (3, 6):
        pool.grad = None
        trainer.forward = Forward(trainer.network, trainer.fabric, batch, compiles=True)
        trainer.encode(IMAGES, attached, prompts=pool[[0, 3, 0]]).pow(3).sum().backward()
        assert pool.grad is not None
        grads.append(pool.grad)
    assert grads[0][[0, 3]].flatten(1).abs().amin() > 0
    assert not grads[0][[1, 2, 4]].any()
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_batches_are_filled_up_with_zeros_and_prompts_beside_them(uncompiled: list) -> None:
    trainer, attached = small_trainer(small_dataset([3])), PromptPrefixes()
    for count, batch in ((6, 6), (2, 6), (4, 4)):
        trainer.forward = Forward(trainer.network, trainer.fabric, batch, compiles=True)
        prompts = some(count, 2, 2, 4, 24)
        feats = trainer.encode(torch.ones(count, 3, 32, 32), attached, prompts=prompts)
        assert len(feats) == count
        images, given = uncompiled.pop()
        assert len(images) == len(given) == batch
        assert torch.equal(given[:count], prompts)
        assert images[:count].all()
        assert not images[count:].any()
        assert not given[count:].any()


@pytest.mark.parametrize("kind", LENGTHS)
def test_prompts_are_needed_for_every_batch(kind: str) -> None:
    vit, attached = small_vit(), attachment(kind)
    vit(IMAGES, attached, prompts=some(3, *LENGTHS[kind]))
    with pytest.raises(TypeError, match="needs the prompts"):
        vit(IMAGES, attached)


@pytest.mark.parametrize("method", [L2P, DualPrompt], ids=["tokens", "prefixes"])
def test_compiled_and_plain_learn_the_same(
    method: Callable[..., Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks with batches that must be filled up, to the size for which all else is compiled.

    Traced forwards and backwards, with a run's guards, as for inductor but without its C++;
    tests/benchmarks/test_plain_loop.py and tests/engine/test_forward.py have that made.
    """

    def traced(network: ViT) -> Callable[..., Tensor]:
        return torch.compile(network, dynamic=False, backend="aot_eager")

    monkeypatch.setattr("dafuse.engine.forward.compiled", cache(traced))
    outcomes = []
    for compiled in (False, True):
        dataset = small_dataset([3, 4, 4, 3])
        trainer = small_trainer(dataset, compiled=compiled)
        learner = method(trainer=trainer, epochs=2, batch_size=trainer.forward.at_once)
        stream = small_stream(dataset, [2, 2])
        for task in stream:
            learner.learn(task)
        with torch.no_grad():
            ((images, _),) = trainer.batches(stream[1].test)
            outcomes.append((learner.state(), trainer.epoch_losses, learner.logits(images[:3])))
    (plain, losses, scores), (fast, same_losses, same_scores) = outcomes
    assert same_losses == pytest.approx(losses, abs=1e-4)
    for key, tensor in plain.items():
        torch.testing.assert_close(fast[key], tensor, rtol=0, atol=1e-3)
    torch.testing.assert_close(same_scores, scores, rtol=0, atol=1e-3)

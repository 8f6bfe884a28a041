"""L2P: the choice of prompts, and what its loss trains."""

from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional as F

from dafuse.backbones.prompts import PromptTokens
from dafuse.errors import DafuseError
from dafuse.heads.linear import linear_normal_init
from dafuse.methods.l2p import L2P
from dafuse.methods.training import init_class_weights
from dafuse.seeds import torch_generator
from helpers.method_probes import cross_entropy_by_hand, loss_at_the_start, prompts_chosen
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def make(sizes: Sequence[int] = (2, 1), **options: int | float) -> tuple:
    dataset = small_dataset([4] * sum(sizes))
    options = {"epochs": 1, "batch_size": 8, "pool_size": 4, "prompts_per_image": 2} | options
    return L2P(trainer=small_trainer(dataset), **options), small_stream(dataset, list(sizes))


def test_each_image_chooses_the_keys_of_greatest_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    method, stream = make()
    method.learn(stream[0])
    images, _ = next(method.trainer.batches(stream[0].test))
    with torch.no_grad():
        chosen = prompts_chosen(method, images, monkeypatch)
        for b, image in enumerate(images):
            query = method.trainer.network(image[None])[0]
            cosines = torch.stack(
                [torch.cosine_similarity(query, k, dim=0) for k in method.keys_MD]
            )
            best = cosines.argsort(descending=True)[:2]
            assert torch.equal(chosen[b], method.prompts_MPD[best].flatten(0, 1))


def test_one_step_is_adam_on_the_loss_written_out() -> None:
    """Cross-entropy over the task's classes less a tenth of the mean sum of cosines."""
    method, stream = make(prompts_per_image=2, key_weight=0.1)
    before = {name: tensor.clone() for name, tensor in method.state().items()}
    task, seen = stream[0], []
    encode = method.trainer.encode

    def spy(images: torch.Tensor, attached: object, prompts: object = None) -> torch.Tensor:
        seen.append(images)
        return encode(images, attached, prompts=prompts)

    method.trainer.encode = spy
    method.learn(task)
    method.trainer.encode = encode
    assert len(seen) == 2  # one batch: the query, and once with prompts

    keys = before["modules/keys"].requires_grad_()
    prompts = before["modules/prompts"].requires_grad_()
    rows = init_class_weights(method.trainer, 0, 2, init=linear_normal_init).requires_grad_()
    with torch.no_grad():
        query = F.normalize(method.trainer.network(seen[0]), dim=1)
    cosines, chosen = (query @ F.normalize(keys, dim=1).T).topk(2, dim=1)
    own = prompts[chosen].flatten(1, 2)
    feats = method.trainer.network(seen[1], method.attached, prompts=own)
    logits = feats @ rows[:, :-1].T + rows[:, -1]
    (-0.1 * cosines.sum() / len(query)).backward()
    assert rows.grad is None  # the second term trains the keys alone
    _, labels = next(method.trainer.loader.train_batches(task.train, 8, generator_of(method)))
    F.cross_entropy(logits, labels).backward()
    torch.optim.Adam([keys, prompts, rows], lr=method.lr).step()
    torch.testing.assert_close(method.keys_MD, keys, rtol=0, atol=1e-4)
    torch.testing.assert_close(method.prompts_MPD, prompts, rtol=0, atol=1e-4)
    torch.testing.assert_close(method.weights_CE, rows, rtol=0, atol=1e-4)


def generator_of(method: L2P) -> torch.Generator:
    """The one that shuffled the first epoch of the first task."""
    return torch_generator(method.trainer.seed, "augmentation", 0, 0)


def test_a_later_task_leaves_older_rows_alone() -> None:
    method, stream = make()
    method.learn(stream[0])
    rows, keys = method.weights_CE.clone(), method.keys_MD.detach().clone()
    shares = method.learn(stream[1])["prompt_shares"]
    assert torch.equal(method.weights_CE[:2], rows)
    assert len(method.weights_CE) == 3
    moved = (method.keys_MD != keys).any(1)
    assert moved.tolist() == [share > 0 for share in shares]  # keys that nobody chose stay
    assert sum(shares) == pytest.approx(1)


def test_the_loss_of_a_later_task_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over the new classes alone, less the pull on the keys that were chosen."""
    method, stream = make(sizes=[2, 2], key_weight=0.4)
    method.learn(stream[0])
    found, (prompts, keys, rows) = loss_at_the_start(method, stream[1], monkeypatch)
    ((images, labels),) = method.trainer.batches(stream[1].train)
    vit = method.trainer.network
    with torch.no_grad():
        cosines = F.normalize(vit(images), dim=1) @ F.normalize(keys, dim=1).T
        nearness, chosen = cosines.topk(2, dim=1)
        own = prompts[chosen].flatten(1, 2)
        feats = method.trainer.encode(images, PromptTokens(vit), prompts=own)
    pull = 0.4 * nearness.sum(1).mean().item()
    expected = cross_entropy_by_hand(feats, rows, labels, first=2) - pull
    assert len(rows) == 2
    assert found == pytest.approx(expected, rel=1e-4)


def test_more_prompts_for_an_image_than_there_are_is_refused() -> None:
    with pytest.raises(DafuseError, match=r"prompts_per_image must be at least 1 and at most 4"):
        make(prompts_per_image=5)

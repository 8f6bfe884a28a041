"""DualPrompt: which prompt goes where, which is trained when, and who chooses."""

from collections.abc import Sequence

import pytest
import torch

from dafuse.backbones.prompts import PromptPrefixes
from dafuse.errors import DafuseError
from dafuse.methods.dualprompt import DualPrompt
from helpers.method_probes import (
    cross_entropy_by_hand,
    loss_at_the_start,
    prompts_chosen,
    trained_from,
)
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


def make(sizes: Sequence[int] = (2, 1, 1), **options: int | float) -> tuple:
    dataset = small_dataset([4, 4, 4, 3])
    options = {"epochs": 1, "batch_size": 8, "prompt_length": 2} | options
    method = DualPrompt(trainer=small_trainer(dataset), **options)
    return method, small_stream(dataset, list(sizes))


def learned(**options: int | float) -> tuple:
    method, stream = make(**options)
    for task in stream:
        method.learn(task)
    images = torch.cat([next(method.trainer.batches(task.test))[0] for task in stream])
    return method, images


@pytest.mark.parametrize(
    ("general", "expert", "found"),
    [(2, 3, (2, 1)), (1, 1, (1, 1)), (0, 3, (0, 3)), (5, 5, (2, 1)), (1, 9, (1, 2))],
)
def test_layers_fit_a_network_of_three_blocks(general: int, expert: int, found: tuple) -> None:
    method, stream = make(general_layers=general, expert_layers=expert)
    method.learn(stream[0])
    assert (method.general_G2PD.shape[0], method.experts_TL2PD.shape[1]) == found


def test_each_image_gets_the_general_prompt_and_then_that_of_the_nearest_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, images = learned()
    with torch.no_grad():
        method.keys_TD = method.trainer.network(images)[[0, 9, 13]]  # so that each is somebody's
        prompts = prompts_chosen(method, images, monkeypatch)
        nearest = torch.cosine_similarity(
            method.trainer.network(images)[:, None], method.keys_TD[None], dim=2
        ).argmax(1)
        assert nearest.unique().tolist() == [0, 1, 2]
        for layer in range(3):
            keys, values = method.attached.prefix(layer, prompts)
            for b, expert in enumerate(nearest.tolist()):
                own = method.experts_TL2PD[expert, 0] if layer == 2 else method.general_G2PD[layer]
                assert torch.equal(keys[b], own[0])
                assert torch.equal(values[b], own[1])


def test_a_task_trains_the_general_prompt_its_own_expert_and_its_own_rows() -> None:
    method, stream = make(sizes=[2, 2])
    method.learn(stream[0])
    first = {name: tensor.clone() for name, tensor in method.state().items()}
    method.learn(stream[1])
    assert not torch.equal(method.general_G2PD, first["modules/general"])
    assert torch.equal(method.experts_TL2PD[:1], first["modules/experts"])
    assert torch.equal(method.keys_TD[:1], first["modules/keys"])
    assert torch.equal(method.weights_CE[:2], first["classifier/rows"])
    assert [len(t) for t in (method.experts_TL2PD, method.keys_TD, method.weights_CE)] == [2, 2, 4]


def test_a_new_expert_starts_as_the_last_one_and_its_key_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, stream = make()
    method.learn(stream[0])
    last, first_key = method.experts_TL2PD[-1:].clone(), method.keys_TD.clone()
    _, expert, key, _ = trained_from(method, stream[1], monkeypatch)
    assert torch.equal(expert, last)
    assert torch.equal(method.experts_TL2PD[:1], last)  # it was copied
    assert (key - first_key).abs().max() > 0.1


def test_the_key_moves_towards_the_queries_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is the key's: the cross-entropy has no way to it."""
    found = {}
    for weight in (0.0, 0.1):
        method, stream = make(key_weight=weight, epochs=3, lr=0.01)
        _, _, start, _ = trained_from(method, stream[0], monkeypatch)
        query = method.trainer.features(stream[0].train, None)[0]
        cosine = [torch.cosine_similarity(query, k).mean().item() for k in (start, method.keys_TD)]
        found[weight] = cosine[1] - cosine[0]
    assert found[0.0] == 0
    assert found[0.1] > 0.01


def test_the_loss_of_a_later_task_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over the new classes alone, under the task's own expert, less the pull on its key."""
    method, stream = make(sizes=[2, 2], key_weight=0.4)
    method.learn(stream[0])
    found, (general, expert, key, rows) = loss_at_the_start(method, stream[1], monkeypatch)
    ((images, labels),) = method.trainer.batches(stream[1].train)
    prompts = torch.cat([general, expert[0]])[None].expand(len(images), -1, -1, -1, -1)
    with torch.no_grad():
        nearness = torch.cosine_similarity(method.trainer.network(images), key).mean().item()
        feats = method.trainer.encode(images, PromptPrefixes(), prompts=prompts)
    expected = cross_entropy_by_hand(feats, rows, labels, first=2) - 0.4 * nearness
    assert len(rows) == 2
    assert abs(nearness) > 1e-3
    assert found == pytest.approx(expected, rel=1e-4)


def test_no_expert_at_all_is_refused() -> None:
    with pytest.raises(DafuseError, match="expert_layers must be at least 1"):
        make(expert_layers=0)

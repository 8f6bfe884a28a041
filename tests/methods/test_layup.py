"""LayUP: sums over tasks give ridge regression on the CLS tokens of the last blocks."""

import pytest
import torch
from torch.nn import functional as F

from dafuse.methods.layup import PENALTIES, LayUP
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

COUNTS = [6, 5, 4, 7]


def learned(counts: list[int], sizes: list[int], **options) -> tuple:
    dataset = small_dataset(counts)
    trainer = small_trainer(dataset)
    method = LayUP(trainer=trainer, **options)
    stream = small_stream(dataset, sizes)
    return method, trainer, stream, [method.learn(task) for task in stream]


@pytest.mark.parametrize("blocks", [1, 2])
def test_tasks_add_up_to_regression_on_everything(blocks: int) -> None:
    method, trainer, stream, diagnoses = learned(COUNTS, [2, 1, 1], blocks=blocks)
    parts = [trainer.features(task.train, None, depths="all") for task in stream]
    labels = torch.cat([labels for _, labels in parts])
    depth, width = trainer.network.depth, trainer.network.width
    layout = trainer.network.parts("all")
    wanted = [i for i, p in enumerate(layout) if p.what == "cls" and p.level >= depth - blocks]
    every = torch.cat([feats for feats, _ in parts]).unflatten(1, (len(layout), width)).double()
    feats = every[:, wanted].flatten(1)
    assert feats.shape[1] == blocks * width
    targets = F.one_hot(labels, 4).double()
    penalised = feats.T @ feats + diagnoses[-1]["penalty"] * torch.eye(blocks * width).double()
    expected = torch.linalg.solve(penalised, feats.T @ targets)
    ((images, _),) = trainer.batches(stream[0].train)
    with torch.no_grad():
        scores = method.logits(images)
    assert torch.allclose(scores.double(), feats[: len(images)] @ expected, atol=1e-3)


def test_one_block_is_the_last_cls_token() -> None:
    method, trainer, stream, _ = learned([3, 3], [2], blocks=1)
    ((images, _),) = trainer.batches(stream[0].train)
    with torch.no_grad():
        scores = trainer.encode(images, None) @ method.weights_CM.T
        assert torch.allclose(method.logits(images), scores, atol=1e-5)


def test_a_network_of_fewer_blocks_is_read_whole() -> None:
    method, trainer, *_ = learned([3, 3], [2], blocks=1000)
    assert method.gram_MM.shape[0] == trainer.network.depth * trainer.network.width


def test_the_order_of_tasks_does_not_matter() -> None:
    dataset = small_dataset(COUNTS)
    stream = small_stream(dataset, [2, 2])
    sums = []
    for order in ((0, 1), (1, 0)):
        method = LayUP(trainer=small_trainer(dataset), penalty=1.0)
        for index in order:
            method.learn(stream[index])
        sums.append(method)
    assert torch.allclose(sums[0].gram_MM, sums[1].gram_MM, rtol=1e-9)
    assert torch.allclose(sums[0].weights_CM, sums[1].weights_CM, atol=1e-6)


def test_the_penalty_is_one_of_the_authors_unless_rounding_forbids_or_it_is_given() -> None:
    *_, diagnoses = learned(COUNTS, [2, 2])
    assert all(each["penalty_chosen"] in PENALTIES for each in diagnoses)
    assert all(each["penalty"] >= each["penalty_chosen"] for each in diagnoses)
    *_, diagnoses = learned(COUNTS, [2, 2], penalty=0.3)
    assert [each["penalty"] for each in diagnoses] == [0.3, 0.3]


def test_a_single_image_takes_the_usual_penalty() -> None:
    method, *_, diagnoses = learned([1], [1])
    assert diagnoses[0]["penalty_chosen"] is None
    assert diagnoses[0]["penalty"] > float(method.gram_MM.diagonal().mean())

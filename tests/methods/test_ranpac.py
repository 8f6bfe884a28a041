"""RanPAC: learning in tasks gives what ridge regression on all images at once gives."""

import pytest
import torch
from torch.nn import functional as F

from dafuse.errors import DafuseError
from dafuse.methods.ranpac import RanPAC
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK = {"epochs": 1, "batch_size": 4, "adapter_rank": 4, "projection": 20}


def learned(counts: list[int], sizes: list[int], **options: int) -> tuple:
    dataset = small_dataset(counts)
    trainer = small_trainer(dataset)
    method = RanPAC(trainer=trainer, **{**QUICK, **options})
    stream = small_stream(dataset, sizes)
    return method, trainer, stream, [method.learn(task) for task in stream]


@pytest.mark.parametrize("projection", [20, 5])
def test_tasks_add_up_to_regression_on_everything(projection: int) -> None:
    counts = [6, 5, 4, 7]
    method, trainer, stream, diagnoses = learned(counts, [2, 1, 1], projection=projection)
    parts = [trainer.features(task.train, method.adapter) for task in stream]
    feats = torch.cat([feats for feats, _ in parts])
    labels = torch.cat([labels for _, labels in parts])
    hidden = torch.relu(feats @ method.random_DM).double()
    targets = F.one_hot(labels, 4).double()
    penalised = hidden.T @ hidden + diagnoses[-1]["penalty"] * torch.eye(projection).double()
    expected = torch.linalg.solve(penalised, hidden.T @ targets).T
    difference = (hidden @ (method.weights_CM.double() - expected).T).abs().max()
    assert difference < 1e-3
    assert torch.allclose(method.gram_MM.double(), hidden.T @ hidden, rtol=1e-5)
    assert torch.allclose(method.moments_CM.double(), targets.T @ hidden, rtol=1e-5)


def test_logits_are_the_plain_linear_map() -> None:
    method, trainer, stream, _ = learned([5, 5], [2])
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        before = method.logits(images)
        method.weights_CM = 3 * method.weights_CM
        assert torch.allclose(method.logits(images), 3 * before, rtol=1e-4)  # a cosine would not


def test_only_the_first_task_trains() -> None:
    _, trainer, _, diagnoses = learned([5, 5, 5], [1, 1, 1])
    assert len(trainer.epoch_losses) == 1
    assert [set(d) for d in diagnoses] == [{"penalty_chosen", "penalty"}] * 3


def test_a_task_of_one_image_takes_the_mean_eigenvalue_as_penalty() -> None:
    method, *_, diagnoses = learned([5, 1], [1, 1])
    mean = float(torch.linalg.eigvalsh(method.gram_MM.double()).mean())
    assert diagnoses[1]["penalty"] == pytest.approx(mean, rel=1e-5)


def test_the_projection_is_the_same_again_but_not_kept() -> None:
    method, _, _, _ = learned([3, 3], [2])
    other = RanPAC(trainer=small_trainer(small_dataset([3, 3])), **QUICK)
    assert torch.equal(method.random_DM, other.random_DM)
    assert all(tensor.shape != method.random_DM.shape for tensor in method.state().values())


def test_a_projection_to_nothing_is_refused() -> None:
    with pytest.raises(DafuseError, match="projection must be at least 1"):
        RanPAC(trainer=small_trainer(small_dataset([2, 2])), projection=0)

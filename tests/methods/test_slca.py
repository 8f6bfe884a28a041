"""SLCA: normalised logits, the rates of network and head, and rows that stay as trained."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dafuse.data.stream import Stream
from dafuse.engine.trainer import Trainer
from dafuse.heads.linear import linear_logits
from dafuse.methods import slca
from dafuse.methods.slca import SLCA, normalised, normalised_gradient
from helpers.method_probes import cross_entropy_by_hand, loss_at_the_start
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "align_epochs": 3, "align_samples": 16}
TASK_OF = torch.tensor([0, 0, 1, 2, 2, 2])
SLICES = slice(0, 2), slice(2, 3), slice(3, 6)


def by_hand(logits: torch.Tensor) -> torch.Tensor:
    lengths = torch.stack([logits[:, part].norm(dim=1) for part in SLICES], dim=1)
    return logits / (lengths.mean(1, keepdim=True) + 1e-7) / 0.1


def head(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, feats = torch.randn(6, 9, generator=generator), torch.randn(20, 8, generator=generator)
    return rows, feats, torch.randint(0, 6, (20,), generator=generator)


def make(sizes: list[int], **options: Any) -> tuple[SLCA, Stream, Trainer]:
    dataset = small_dataset([6, 5, 6, 1, 4, 5])
    trainer = small_trainer(dataset)
    return SLCA(trainer=trainer, **{**QUICK, **options}), small_stream(dataset, sizes), trainer


def test_logits_over_the_mean_length_of_the_tasks_parts() -> None:
    rows, feats, _ = head()
    logits = linear_logits(feats, rows)
    assert torch.allclose(normalised(logits, F.one_hot(TASK_OF).float()), by_hand(logits))
    worked = normalised(torch.tensor([[3.0, 4.0, -1.0]]), torch.tensor([[1.0, 0], [1, 0], [0, 1]]))
    assert torch.allclose(worked, torch.tensor([[10.0, 40 / 3, -10 / 3]]))  # mean of 5 and 1 is 3


def test_the_gradient_is_that_of_autograd_also_without_gradients() -> None:
    rows, feats, labels = head(1)
    rows.requires_grad_(True)
    F.cross_entropy(by_hand(linear_logits(feats, rows)), labels).backward()
    with torch.no_grad():
        found = normalised_gradient(TASK_OF)(rows.detach(), feats, labels)
    assert torch.allclose(found, rows.grad, atol=1e-6)  # type: ignore[arg-type]
    assert not found.requires_grad


def test_logits_of_zero_have_a_finite_gradient() -> None:
    rows, feats, labels = head(2)
    rows[2] = 0  # the whole of the second task
    assert normalised_gradient(TASK_OF)(rows, feats, labels).isfinite().all()


def test_old_rows_are_not_trained_and_the_network_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    method, stream, _ = make([2, 3, 1])
    groups: list[list[tuple[float, int]]] = []
    fit = Trainer.fit

    def spied(self: Trainer, task: Any, attached: Any, loss: Any, asked: Any, schedule: Any):
        lists = [g._replace(parameters=list(g.parameters)) for g in asked]
        groups.append([(g.rate, sum(p.numel() for p in g.parameters)) for g in lists])
        assert [schedule.decay(e, 20) for e in (0, 17, 18, 19)] == [1, 1, 0.1, 0.1]
        fit(self, task, attached, loss, lists, schedule)

    monkeypatch.setattr(Trainer, "fit", spied)
    network = sum(p.numel() for p in method.network.parameters())
    for task in stream:
        before = method.trained_CE
        method.learn(task)
        assert torch.equal(method.trained_CE[: task.first], before)
    assert groups == [[(0.01, network), (1.0, 25 * size)] for size in (2, 3, 1)]
    assert method.task_of_C.tolist() == [0, 0, 1, 1, 1, 2]


def test_the_loss_of_a_later_task_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over the new classes alone, under the network as the last task left it."""
    method, stream, trainer = make([2, 3, 1], lr=0.1)
    method.learn(stream[0])
    found, (*_, rows) = loss_at_the_start(method, stream[1], monkeypatch)
    ((images, labels),) = trainer.batches(stream[1].train)
    with torch.no_grad():
        feats, bare = method.network(images), trainer.network(images)
    assert len(rows) == 3
    assert not torch.allclose(feats, bare, atol=1e-3)
    assert found == pytest.approx(cross_entropy_by_hand(feats, rows, labels, first=2), rel=1e-4)


def test_alignment_starts_from_trained_rows_and_shrunk_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, stream, _ = make([2, 3, 1])
    starts, align = [], slca.aligned

    def spied(trainer: Any, task: Any, rows: Any, sampler: Any, *rest: Any, **more: Any) -> Any:
        starts.append((rows, sampler.mean_CD))
        return align(trainer, task, rows, sampler, *rest, **more)

    monkeypatch.setattr(slca, "aligned", spied)
    method.learn(stream[0])
    assert torch.equal(method.aligned_CE, method.trained_CE)
    method.learn(stream[1])
    method.learn(stream[2])
    assert len(starts) == 2  # not after the first task
    rows, means = starts[1]
    assert torch.equal(rows, method.trained_CE)
    assert not torch.allclose(method.aligned_CE, method.trained_CE)
    factors = 0.9 + 0.1 * torch.tensor([1, 1, 2, 2, 2, 3]) / 3
    assert torch.allclose(means, method.classes.tensors["mean"] * factors[:, None])


def test_without_alignment_the_trained_rows_predict() -> None:
    method, stream, _ = make([3, 3], align_epochs=0)
    for task in stream:
        method.learn(task)
    assert torch.equal(method.aligned_CE, method.trained_CE)
    assert method.aligned_CE.data_ptr() != method.trained_CE.data_ptr()

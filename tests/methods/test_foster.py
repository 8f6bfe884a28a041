"""FOSTER: both stages of a later task against the same by hand."""

import pytest
import torch
from torch.nn import functional as F

from dafuse.methods.foster import FOSTER
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

COUNTS = torch.tensor([3.0, 3.0, 6.0, 1.0])  # exemplars of the old classes, images of the new


def weights(beta: float) -> torch.Tensor:
    inverse = (1 - beta) / (1 - beta**COUNTS)
    return inverse / inverse.mean()


def linear(feats: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return feats @ rows[:, :-1].T + rows[:, -1]


def soften(student: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -(target * F.log_softmax(student / 2, 1)).sum(1).mean()


@pytest.fixture
def world() -> tuple:
    dataset = small_dataset([6, 5, 6, 1])
    trainer = small_trainer(dataset)
    epochs = {"epochs": 2, "first_epochs": 1, "compress_epochs": 1}
    method = FOSTER(trainer=trainer, **epochs, batch_size=8, exemplars_per_class=3)
    return method, small_stream(dataset, [2, 2]), trainer


def test_boosting_and_compression_by_hand(world: tuple) -> None:
    method, stream, trainer = world
    method.learn(stream[0])
    base = {k: v.clone() for k, v in method.student.state_dict().items()}
    old_rows, width = method.weights_CE, trainer.network.width
    ((pixels, labels),) = trainer.batches(method.memory.joined(stream[1].train))
    found: list[torch.Tensor] = []
    by_hand: list[torch.Tensor] = []

    def boosting(loss, rows, auxiliary) -> None:  # type: ignore[no-untyped-def]
        assert torch.equal(rows[:2, :width], old_rows[:, :-1])
        assert torch.equal(rows[:2, -1], old_rows[:, -1])
        with torch.no_grad():
            for parameter in method.new.parameters():
                parameter.add_(0.01)
        found.append(loss(pixels, labels))
        found[-1].backward()
        assert all(p.grad is None for p in method.old.parameters())
        assert all(p.grad is not None for p in method.new.parameters())
        with torch.no_grad():
            old, new = method.old(pixels), method.new(pixels)
            logits = linear(torch.cat([old, new], 1), rows)
            kept = soften(logits[:, :2], F.softmax(linear(old, old_rows) / 2, 1))
            whole = F.cross_entropy(logits / weights(0.96), labels)
            by_hand.append(whole + F.cross_entropy(linear(new, auxiliary), labels) + kept)

    def compression(loss, rows) -> None:  # type: ignore[no-untyped-def]
        assert torch.equal(rows[:2], old_rows)
        state = method.student.state_dict()
        assert all(torch.equal(base[k], v) for k, v in state.items())  # it starts as the old one
        method.new.zero_grad(set_to_none=True)
        found.append(loss(pixels, labels))
        found[-1].backward()
        assert all(p.grad is None for n in (method.old, method.new) for p in n.parameters())
        with torch.no_grad():
            both = torch.cat([method.old(pixels), method.new(pixels)], 1)
            target = F.softmax(linear(both, method.teacher_CF) / 2, 1) * weights(0.97)
            target = target / target.sum(1, keepdim=True)
            by_hand.append(soften(linear(method.student(pixels), rows), target))

    def fit(task, attached, loss, groups, schedule, *, images, epochs_before=0) -> None:  # type: ignore[no-untyped-def]
        heads = [p for p in groups[0].parameters if p.shape[-1] in (width + 1, 2 * width + 1)]
        assert epochs_before == (0 if len(heads) == 2 else 2)
        assert schedule.weight_decay == (5e-4 if len(heads) == 2 else 0)
        (boosting if len(heads) == 2 else compression)(loss, *heads)

    trainer.fit = fit
    method.learn(stream[1])
    assert [float(v.detach()) for v in found] == pytest.approx(
        [float(v) for v in by_hand], abs=1e-4
    )
    assert len(found) == 2


def test_teacher_is_two_networks_and_the_student_goes_on(world: tuple) -> None:
    method, stream, trainer = world
    ((pixels, _),) = trainer.batches(stream[0].test)
    method.learn(stream[0])
    with torch.no_grad():
        first = method.predictions(pixels)
    assert torch.equal(first["teacher"], first["student"])
    student = {k: v.clone() for k, v in method.student.state_dict().items()}
    method.learn(stream[1])
    assert all(torch.equal(student[k], v) for k, v in method.old.state_dict().items())
    with torch.no_grad():
        found = method.predictions(pixels)
        both = torch.cat([method.old(pixels), method.new(pixels)], 1)
        assert torch.allclose(found["teacher"], linear(both, method.teacher_CF), atol=1e-4)
        alone = linear(method.student(pixels), method.weights_CE)
        assert torch.allclose(found["student"], alone, atol=1e-4)
    assert list(found) == ["teacher", "student"]


def test_who_predicts_with_the_student_keeps_one_network(world: tuple) -> None:
    method, stream, trainer = world
    one = FOSTER(trainer=trainer, epochs=1, first_epochs=1, compress_epochs=1, predict="student")
    for task in stream:
        method.learn(task)
        one.learn(task)
    assert method.kept_bytes()["modules"] == 3 * one.kept_bytes()["modules"]
    assert [FOSTER.passes(2, {"predict": way}) for way in ("teacher", "student")] == [2, 1]

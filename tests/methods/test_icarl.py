"""iCaRL: the loss and the two ways to predict, against the same by hand."""

import pytest
import torch
from torch.nn import functional as F

from dafuse.methods.icarl import ICaRL
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


@pytest.fixture
def world() -> tuple:
    dataset = small_dataset([6, 5, 6, 1])
    trainer = small_trainer(dataset)
    method = ICaRL(trainer=trainer, epochs=1, batch_size=8, exemplars_per_class=3)
    return method, small_stream(dataset, [2, 2]), trainer


def test_the_second_loss_is_cross_entropy_and_distillation_of_old_logits(world: tuple) -> None:
    method, stream, trainer = world
    method.learn(stream[0])
    before = {k: v.clone() for k, v in method.network.state_dict().items()}
    old = method.weights_CE
    (batch,) = trainer.batches(method.memory.joined(stream[1].train))
    seen: dict[str, torch.Tensor] = {}

    def fit(task, attached, loss, groups, schedule, *, images) -> None:  # type: ignore[no-untyped-def]
        assert sorted(set(images.labels)) == [0, 1, 2, 3]
        assert len(images) == 7 + 6  # the task's and the exemplars
        *_, rows = groups[0].parameters
        with torch.no_grad():  # as if training had moved the network
            for parameter in method.network.parameters():
                parameter.add_(0.01)
        found = loss(*batch)
        found.backward()
        seen.update(loss=found, gradient=rows.grad, rows=rows.detach())

    trainer.fit = fit
    method.learn(stream[1])
    assert all(torch.equal(v, before[k]) for k, v in method.previous.state_dict().items())
    with torch.no_grad():
        now = torch.cat([method.network(batch[0]), torch.ones(13, 1)], dim=1) @ seen["rows"].T
        then = torch.cat([method.previous(batch[0]), torch.ones(13, 1)], dim=1) @ old.T
        soft = -(F.softmax(then / 2, 1) * F.log_softmax(now[:, :2] / 2, 1)).sum(1).mean()
        expected = F.cross_entropy(now, batch[1]) + soft
    assert float(seen["loss"].detach()) == pytest.approx(float(expected), abs=1e-4)
    assert not torch.allclose(then, now[:, :2], atol=1e-3)  # else nothing is shown
    assert (seen["gradient"].abs().sum(1) > 0).all()  # all rows are trained, old and new


def test_nme_is_the_nearest_mean_of_exemplars(world: tuple) -> None:
    method, stream, trainer = world
    for task in stream:
        method.learn(task)
    kept = method.exemplars()
    assert [int((kept.labels == c).sum()) for c in range(4)] == [3, 3, 3, 1]
    ((images, _),) = trainer.batches(stream[0].test)
    with torch.no_grad():
        feats, labels = trainer.features(kept, None, method.network)
        units = F.normalize(feats, dim=1)
        means = torch.stack([F.normalize(units[labels == c].mean(0), dim=0) for c in range(4)])
        probe = F.normalize(method.network(images), dim=1)
        distances = torch.cdist(probe, means)
        scores = method.predictions(images)
    assert list(scores) == ["nme", "cnn"]
    assert torch.allclose(2 - 2 * scores["nme"], distances.square(), atol=1e-4)
    assert torch.equal(scores["nme"].argmax(1), distances.argmin(1))

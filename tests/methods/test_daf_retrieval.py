"""DAF with retrieval: DAF underneath, and the most certain task adapter beside it."""

from typing import Any

import torch

from dafuse.backbones.adapter import Adapter
from dafuse.heads.cosine import cosine_logits
from dafuse.methods.daf import DAF
from dafuse.methods.daf_retrieval import DAFRetrieval
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "adapter_rank": 4, "align_epochs": 2, "align_samples": 16
}  # fmt: skip


def learned(cls: type[DAF], **options: Any) -> tuple:
    dataset = small_dataset([5] * 5)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 2, 1])
    method = cls(trainer=trainer, **(QUICK | options))
    trained = []
    for task in stream:
        method.learn(task)
        trained.append(method.task_adapter.tensors())
    return method, trainer, trained


def test_it_learns_what_daf_learns_and_keeps_the_task_adapters() -> None:
    plain, _, trained = learned(DAF)
    method, *_ = learned(DAFRetrieval)
    state = method.state()
    assert all(torch.equal(tensor, state[key]) for key, tensor in plain.state().items())
    assert len(method.bank) == 3
    for position, tensors in enumerate(trained):
        assert all(torch.equal(t, method.bank[position][name]) for name, t in tensors.items())


def test_prediction_adds_the_most_certain_task_adapter() -> None:
    method, trainer, trained = learned(DAFRetrieval)
    plain, *_ = learned(DAF)
    state = {k: v * (6 if "/global" in k else 1) for k, v in method.state().items()}
    method.load_state(state)  # a global adapter that is often the most certain of all
    plain.load_state(state)
    images = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def probabilities(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        adapter = Adapter(trainer.network.depth, trainer.network.width, 4).set(tensors).eval()
        return cosine_logits(trainer.encode(images, adapter), method.weights_CD).softmax(1)

    with torch.no_grad():
        found = method.predictions(images)
        tasks = torch.stack([probabilities(tensors) for tensors in trained], dim=1)
        alone = plain.logits(images).softmax(1)
    entropy = torch.special.entr(tasks).sum(2)
    certain = torch.stack([p[k] for p, k in zip(tasks, entropy.argmin(1), strict=True)])
    more_certain = torch.special.entr(alone).sum(1) < entropy.min(1).values
    assert more_certain.any()  # and yet it is no candidate
    assert list(found) == ["retrieval", "global"]
    assert torch.allclose(found["global"], alone, atol=1e-4)
    assert torch.allclose(found["retrieval"], alone + certain, atol=1e-4)


def test_it_grows_where_daf_does_not() -> None:
    plain, *_ = learned(DAF)
    method, *_ = learned(DAFRetrieval)
    one = sum(t.numel() * t.element_size() for t in method.bank[0].values())
    assert method.kept_bytes()["modules"] == plain.kept_bytes()["modules"] + 3 * one
    assert (DAF.passes(3, {}), DAFRetrieval.passes(3, {})) == (1, 4)

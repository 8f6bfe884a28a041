"""Probes into a method: its loss before the first step, the prompts that it chooses."""

from typing import Any

import pytest
import torch

from dafuse.data.stream import Task
from dafuse.methods.contract import Method


def loss_at_the_start(
    method: Method, task: Task, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, list[torch.Tensor]]:
    """The loss of a task's images before its first step, and what would be trained, and is not.

    The last tensor, the new rows, is moved first: at their start all classes are nearly the same.
    """
    trainer, asked = method.trainer, {}

    def fit(task: Task, attached: Any, loss: Any, groups: Any, schedule: Any, **_: Any) -> None:
        trained = [tensor for group in groups for tensor in group.parameters]
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            trained[-1].add_(torch.randn(trained[-1].shape, generator=generator))
            ((images, labels),) = trainer.batches(task.train)
            asked["loss"] = loss(images, labels).item()
        asked["trained"] = [tensor.detach().clone() for tensor in trained]

    monkeypatch.setattr(trainer, "fit", fit)
    method.learn(task)
    return asked["loss"], asked["trained"]


def trained_from(method: Method, task: Task, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Learn the task; return what was trained, as it was before the first step."""
    fit, start = method.trainer.fit, []

    def spy(task: Task, attached: Any, loss: Any, groups: Any, *how: Any, **more: Any) -> None:
        start.extend(tensor.detach().clone() for group in groups for tensor in group.parameters)
        fit(task, attached, loss, groups, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(method.trainer, "fit", spy)
        method.learn(task)
    return start


def prompts_chosen(method: Method, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The prompts with which the method predicts these images."""
    encode, given = method.trainer.encode, []

    def spy(*arguments: Any, prompts: Any = None) -> torch.Tensor:
        given.append(prompts)
        return encode(*arguments, prompts=prompts)

    with monkeypatch.context() as patch:
        patch.setattr(method.trainer, "encode", spy)
        method.logits(images)
    return given[-1]  # the query before it has none


def cross_entropy_by_hand(
    feats: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, first: int
) -> float:
    """Return the loss over the classes of these rows, which end in a bias, from ``first`` on."""
    terms = []
    for feat, label in zip(feats.double(), labels.tolist(), strict=True):
        scores = torch.stack([feat @ row[:-1] + row[-1] for row in rows.double()])
        terms.append(scores.exp().sum().log() - scores[label - first])
    return torch.stack(terms).mean().item()

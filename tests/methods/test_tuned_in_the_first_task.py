"""Methods in closed form that may train an adapter in the first task: when they do, and where."""

from typing import Any

import pytest

from dafuse.errors import DafuseError
from dafuse.methods.registry import METHODS, require_observes
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK: dict[str, dict[str, Any]] = {
    "layup": {},
    "anacp": {"width": 20, "samples": 8, "penalty": 0.5},
}
TRAINED = {"epochs": 1, "batch_size": 4, "adapter_rank": 4}
by_method = pytest.mark.parametrize("name", QUICK)


@by_method
@pytest.mark.parametrize(("tuned", "epochs"), [({"tune": "first"}, 1), ({}, 0)])
def test_only_the_first_task_trains_and_only_where_asked(
    name: str, tuned: dict[str, str], epochs: int
) -> None:
    dataset = small_dataset([5, 5])
    trainer = small_trainer(dataset)
    method = METHODS[name](trainer=trainer, **QUICK[name], **TRAINED, **tuned)
    for task in small_stream(dataset, [1, 1]):
        method.learn(task)
    assert len(trainer.epoch_losses) == epochs


@by_method
def test_what_trains_in_a_task_refuses_streams_without_tasks(name: str) -> None:
    require_observes(name, "online", {"tune": "none"})
    with pytest.raises(DafuseError, match=f"{name} trains an adapter in the first task"):
        require_observes(name, "online", {"tune": "first"})

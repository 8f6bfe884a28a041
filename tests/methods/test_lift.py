"""lift beyond the contract: order, bytes, adapters and what a killed run finds again."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from dafuse.data.stream import Stream
from dafuse.engine.trainer import Trainer
from dafuse.methods.lift import LIFT
from dafuse.methods.training import init_adapter
from faults.command import Ended
from helpers.processes import dafuse
from helpers.small_datasets import save_arrays, small_dataset
from helpers.small_runs import small_stream, small_trainer

EXACT: dict[str, Any] = {"penalty": 0.01, "precision": "float64"}


def taught(sizes: list[int], **options: Any) -> tuple[LIFT, Stream, Trainer]:
    dataset = small_dataset([6, 5, 6, 2, 4, 5])
    trainer, stream = small_trainer(dataset), small_stream(dataset, sizes)
    method = LIFT(trainer=trainer, **options)
    for task in stream:
        method.learn(task)
    return method, stream, trainer


def scores(method: LIFT, stream: Stream, trainer: Trainer) -> torch.Tensor:
    """Scores of all test images, before any temperature."""
    batches = [x for task in stream for x, _ in trainer.batches(task.test)]
    with torch.no_grad():
        encoded = [trainer.encode(x, None, depths=method.features) for x in batches]
        return torch.cat([method.solved.scores(feats) for feats in encoded])


@pytest.mark.parametrize("options", [{}, {"width": 20}, {"head": "lda"}, {"features": "last"}])
def test_one_task_or_six_give_one_classifier(options: dict[str, Any]) -> None:
    together = scores(*taught([6], **EXACT, **options))
    apart = scores(*taught([1] * 6, **EXACT, **options))
    assert torch.allclose(apart, together, atol=1e-5 * float(together.abs().max()))


def test_half_precision_changes_scores_by_less_than_a_percent() -> None:
    exact = scores(*taught([2, 2, 2], **EXACT))
    half = scores(*taught([2, 2, 2], penalty=0.01, precision="float16"))
    assert (half - exact).abs().max() < 0.01 * exact.abs().max()


CHOSEN = 6 * 8 + 2 * 2 * 8 * 8  # bytes: head, penalty and temperature; what is said of penalties


def kept(width: int, classes: int, rows: int) -> int:
    """Bytes of the default: a triangle, class means and weights in sixteen bits."""
    factor = 2 * (rows * width - rows * (rows - 1) // 2)
    units = 4 * 4 * width  # of the factor's columns, of means and weights; the mean of means
    return factor + units + classes * (2 * 2 * width + 8 + 4) + CHOSEN


def test_bytes_are_as_the_formula_says() -> None:
    method, _, trainer = taught([6])
    width = trainer.network.width_at("moments")
    assert sum(method.kept_bytes().values()) == kept(width, 6, min(28, width))
    wide_network = 27 * 192  # of a network of 12 blocks, 192 wide
    assert kept(wide_network, 200, wide_network) <= 32e6


def test_a_record_of_a_class_is_below_60_kB() -> None:
    method, *_ = taught([2, 4], keep="classwise")

    def of_a_class(width: int) -> int:
        """Directions and rest in eight bits, mean and weights in sixteen, steps, bias and count."""
        steps = (method.rank + 1) * math.ceil(width / 96) + math.ceil(width / 16)
        return (method.rank + 1) * width + 4 * steps + 2 * 2 * width + 4 + 8

    width = method.lift.width
    assert sum(method.kept_bytes().values()) == 6 * of_a_class(width) + 4 * width + CHOSEN
    assert of_a_class(27 * 192) <= 60e3


def test_asking_changes_nothing_of_what_is_learned() -> None:
    dataset = small_dataset([6, 5, 6])
    trainer, (task,) = small_trainer(dataset), small_stream(dataset, [3])
    batches = list(trainer.batches(task.train, 4))
    labels = torch.from_numpy(task.train.labels).split([len(x) for x, _ in batches])
    found = []
    for asks in (False, True):
        method = LIFT(trainer=trainer, features="last", width=9)
        for (images, _), own in zip(batches, labels, strict=True):
            with torch.no_grad():
                method.observe(images, own)
                if asks:
                    method.logits(images)
        found.append(method.state())
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_nothing_kept_has_an_entry_for_each_image() -> None:
    method, *_ = taught([6], features="last")
    images = 28
    state = method.state()
    assert all(images not in tensor.shape for tensor in state.values())


def test_the_adapter_in_use_is_the_mean_of_those_trained() -> None:
    options = {"tune": "each", "tune_tasks": 2, "epochs": 2, "batch_size": 8, "adapter_rank": 4}
    dataset = small_dataset([6, 5, 6, 2, 4, 5])
    trainer, stream = small_trainer(dataset), small_stream(dataset, [2, 2, 2])
    method = LIFT(trainer=trainer, **options)
    trained: list[dict[str, torch.Tensor]] = []
    fit = trainer.fit

    def watched(*args: Any, **kwargs: Any) -> None:
        fit(*args, **kwargs)
        trained.append(method.adapter.tensors())

    trainer.fit = watched  # type: ignore[method-assign]
    start = init_adapter(trainer, 0, 4).tensors()
    for task in stream:
        method.learn(task)
    assert len(trained) == 2
    for name, tensor in method.adapter.tensors().items():
        assert torch.allclose(tensor, (trained[0][name] + trained[1][name]) / 2, atol=1e-6)
    assert not torch.equal(method.adapter.tensors()["up.weight"], start["up.weight"])


def test_the_diagnosis_tells_what_was_chosen_and_how_well_it_does() -> None:
    dataset = small_dataset([6, 5, 6, 2, 4, 5])
    method = LIFT(trainer=small_trainer(dataset), head="auto")
    found = method.learn(small_stream(dataset, [6])[0])
    assert found["head"] in ("ridge", "lda")
    assert found["penalty"] > 0
    assert found["left_out"]["images"] == 28
    assert 0 <= found["left_out"]["accuracy"] <= 1


def test_killed_while_it_solves_it_goes_on_bit_identically(tmp_path: Path) -> None:
    file, dataset = tmp_path / "small.npz", small_dataset([5, 4, 5, 3])
    save_arrays(dataset, file)

    def teach(out: Path, at: tuple[str, str, int] | None = None) -> Ended:
        command = ["run", "--data", file, "--method", "lift", "--increment", "1"]
        return dafuse(*command, "--device", "cpu", "--out", out, at=at)

    def outcome(out: Path) -> tuple[bytes, list[list[int]]]:
        (tensors,) = (out / "checkpoints").glob("*.safetensors")
        return tensors.read_bytes(), json.loads((out / "results.json").read_text())["correct"]

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert teach(whole).status == 0
    killed = teach(stopped, ("dafuse.heads.classifier", "choose", 3))
    assert killed.status == -signal.SIGKILL, killed.err
    done = teach(stopped)
    assert done.status == 0, done.err
    assert outcome(stopped) == outcome(whole)

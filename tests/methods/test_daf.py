"""DAF's own heart: `learn` is Algorithm 1, and the options do what they say."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dafuse.backbones.adapter import Tensors
from dafuse.engine.replay import Recording
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.fusion.rule import fuse
from dafuse.heads.closed_form import Kind, System
from dafuse.heads.confidence import calibrated, unit_of
from dafuse.heads.sums import pooled
from dafuse.methods.curvature import unpacked_curvature
from dafuse.methods.daf import DAF, DAFPaper
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

QUICK: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "adapter_rank": 4, "align_epochs": 2, "align_samples": 16
}  # fmt: skip


class Spy(DAF):
    """Remembers what each task trained and what it was fused from."""

    def train_adapter(self, task: Any, init: Tensors) -> Tensors:
        found = super().train_adapter(task, init)
        trained, head = self.task_adapter.tensors(), found["head"]
        self.seen = getattr(self, "seen", [])
        self.seen.append({"init": init, "trained": trained, "head": head})
        return found

    def measure_curvature(self, task: Any) -> Tensors:
        found = super().measure_curvature(task)
        self.at_task = unpacked_curvature(found)
        return found


def learn(**options: Any) -> tuple[Spy, Trainer, Any]:
    dataset = small_dataset([6] * 6)
    trainer = small_trainer(dataset)
    method = Spy(trainer=trainer, **(QUICK | options))
    stream = small_stream(dataset, [2, 2, 2])
    method.globals = []  # type: ignore[attr-defined]
    for task in stream:
        method.diagnosis = method.learn(task)  # type: ignore[attr-defined]
        method.globals.append(method.global_adapter.tensors())  # type: ignore[attr-defined]
    return method, trainer, stream


def equal(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


def close(a: Tensors, b: Tensors) -> bool:
    return all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)


def test_robust_initialisation_is_the_mean_of_the_earlier_adapters() -> None:
    method, *_ = learn()
    first, second, third = (seen["trained"] for seen in method.seen)
    assert equal(method.seen[1]["init"], first)
    assert close(method.seen[2]["init"], {k: (first[k] + second[k]) / 2 for k in first})
    assert method.mean is not None
    assert close(method.mean, {k: (first[k] + second[k] + third[k]) / 3 for k in first})


def test_the_global_adapter_is_fused_from_the_three() -> None:
    method, *_ = learn(alpha=2.0)
    last, at_task = method.seen[-1], method.at_task
    fused, _ = fuse(
        last["trained"], last["init"], method.globals[1], at_task.fisher, at_task.gradient, 2.0
    )
    assert equal(fused, method.globals[2])


def test_first_task_copied_or_fused() -> None:
    copied, *_ = learn()
    assert equal(copied.globals[0], copied.seen[0]["trained"])
    fused, *_ = learn(first_task="fuse")
    assert not close(fused.globals[0], fused.seen[0]["trained"])
    up = "up.weight"  # starts at zero, so fusing shrinks it towards zero
    assert fused.globals[0][up].norm() < fused.seen[0]["trained"][up].norm()


def test_rules() -> None:
    last, *_ = learn(rule="last")
    assert equal(last.globals[2], last.seen[2]["trained"])
    mean, *_ = learn(rule="mean")
    expected = {
        k: torch.stack([s["trained"][k] for s in mean.seen]).mean(0) for k in mean.globals[2]
    }
    assert close(mean.globals[2], expected)
    static, *_ = learn(rule="static")
    assert equal(static.globals[0], static.seen[0]["trained"])
    parts = static.seen[2]["trained"], static.seen[2]["init"], static.globals[1]
    assert close(static.globals[2], {k: sum(p[k] for p in parts) / 3 for k in parts[0]})


def test_initialisations() -> None:
    previous, *_ = learn(init="previous")
    assert equal(previous.seen[2]["init"], previous.seen[1]["trained"])
    random, *_ = learn(init="random")
    assert not close(random.seen[1]["init"], random.seen[2]["init"])
    shared, *_ = learn(init="random_shared")
    assert equal(shared.seen[0]["init"], shared.seen[2]["init"])
    assert (shared.seen[2]["init"]["up.weight"] == 0).all()


def test_training_is_the_same_whatever_comes_after_it() -> None:
    """The task adapters depend on the initialisation alone, not on rule, alpha, statistics."""
    base, *_ = learn()
    other, *_ = learn(rule="last", alpha=9.0, stats_adapter="task", memory="diagonal")
    for a, b in zip(base.seen, other.seen, strict=True):
        assert equal(a["trained"], b["trained"])


def test_curvature_is_that_of_the_task_loss_on_clean_images() -> None:
    method, trainer, stream = learn()
    task, seen = stream[2], method.seen[2]
    images, labels = next(iter(trainer.batches(task.train)))
    adapter = method.task_adapter
    feats = trainer.encode(images, adapter.eval())
    logits = 20 * F.normalize(feats, dim=1) @ F.normalize(seen["head"], dim=1).T
    F.cross_entropy(logits, labels - task.first).backward()
    for name, parameter in adapter.named_parameters():
        assert torch.allclose(method.at_task.gradient[name], parameter.grad, atol=1e-5)  # type: ignore[arg-type]


def test_statistics_follow_the_chosen_adapter() -> None:
    for choice in ("global", "task"):
        method, trainer, stream = learn(stats_adapter=choice)
        adapter = method.global_adapter if choice == "global" else method.task_adapter
        feats, labels = trainer.features(stream[2].train, adapter)
        mean = feats[labels == 5].mean(0)
        assert torch.allclose(method.classes.tensors["mean"][5], mean, atol=1e-5)


def test_new_class_weights_are_unit_prototypes_before_alignment() -> None:
    method, *_ = learn(align_epochs=0)
    assert torch.allclose(method.weights_CD.norm(dim=1), torch.ones(6), atol=1e-5)
    means = F.normalize(method.classes.tensors["mean"], dim=1)
    assert torch.allclose(method.weights_CD, means, atol=1e-5)


@pytest.mark.parametrize("kind", ["ridge", "lda"])
def test_a_head_in_closed_form_is_that_of_features_as_they_were_measured(kind: Kind) -> None:
    dataset = small_dataset([6, 5, 7, 6])
    trainer = small_trainer(dataset)
    method = DAF(trainer=trainer, head=kind, head_width=5, **QUICK)
    aligned = DAF(trainer=small_trainer(dataset), **QUICK)
    sums = None
    for task in small_stream(dataset, [2, 2]):
        chosen = method.learn(task)["closed_form"]
        assert chosen["head"] == kind
        aligned.learn(task)
        assert equal(method.global_adapter.tensors(), aligned.global_adapter.tensors())
        feats_ND, labels_N = trainer.features(task.train, method.global_adapter)
        hidden_NM = method.solved.lift(feats_ND)
        assert hidden_NM.shape[1] == trainer.network.width + 5
        sums = sums or pooled(hidden_NM.shape[1], hidden_NM)
        sums.add(hidden_NM, labels_N)
    head = System(sums, kind).head(chosen["penalty"])
    scores = head.scores(hidden_NM.double()) / unit_of(head, sums.means_CM)
    expected = calibrated(scores, method.solved.temperature.value)
    with torch.no_grad():
        ((images, _),) = trainer.batches(task.train)
        found = method.logits(images).double()
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert not len(method.weights_CD)  # neither rows nor Gaussians are kept
    assert not any("statistics/class" in key for key in method.state())


def test_diagnosis_has_what_the_report_draws() -> None:
    method, *_ = learn()
    found = method.diagnosis
    assert [layer["layer"] for layer in found["beta"]] == [0, 1, 2]
    assert 0 <= found["clipped_low"] + found["clipped_high"] <= 1
    assert set(found["bound"]) == {"empirical_risk", "init_sq_distance", "global_sq_distance"}
    assert found["moved"]["distance"] == pytest.approx(found["bound"]["global_sq_distance"] ** 0.5)


def test_the_literal_preset_differs_in_two_choices_only() -> None:
    trainer = small_trainer(small_dataset([2] * 2))
    ours, literal = vars(DAF(trainer=trainer)), vars(DAFPaper(trainer=trainer))
    options = [field.name for field in fields(DAF) if field.name != "trainer"]
    assert {k: literal[k] for k in options if literal[k] != ours[k]} == {
        "first_task": "fuse",
        "stats_adapter": "task",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "dinamic"}, "method.rule must be one of dynamic"),
        ({"epochs": 0}, "method.epochs must be at least 1"),
        ({"gamma": 5.0}, "method.gamma must be at least 0 and at most 1"),
        ({"adapter_dropout": 2.0}, "method.adapter_dropout"),
        ({"align_lr": 1e30}, "class weights aligned in task 2 are not finite"),
        ({"lr": 1e30, "epochs": 1, "batch_size": 64}, "the features after task 1 are not finite"),
    ],
)
def test_senseless_options_and_what_comes_of_them(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DafuseError, match=message):
        learn(**options)


def test_a_loss_that_diverges_names_task_epoch_and_step() -> None:
    with pytest.raises(DafuseError, match=r"task 1, epoch \d+, step \d+"):
        learn(lr=1e30)


def test_a_recorded_run_keeps_fisher_whatever_its_own_rule(tmp_path: Path) -> None:
    """Runs that replay it with the paper's rule then need no image."""
    dataset = small_dataset([4] * 2)
    trainer, (task,) = small_trainer(dataset), small_stream(dataset, [2])
    options: dict[str, Any] = {"rule": "mean", "epochs": 1, "batch_size": 8, "align_epochs": 0}
    DAF(trainer=trainer, **options).learn(task)
    assert "fisher" not in trainer.seconds  # the rule itself needs none
    method = DAF(trainer=trainer, **options)
    Recording(None, tmp_path / "record", trainer.ranks).wrap(method)
    method.learn(task)
    assert "fisher" in trainer.seconds
    kept = {path.name for path in (tmp_path / "record").iterdir()}
    assert kept == {"training-0001.safetensors", "per_sample-0001.safetensors"}


def test_a_replayed_method_takes_what_is_recorded_and_adds_nothing(tmp_path: Path) -> None:
    dataset = small_dataset([4] * 2)
    trainer, (task,) = small_trainer(dataset), small_stream(dataset, [2])
    options: dict[str, Any] = {"epochs": 1, "batch_size": 8, "align_epochs": 0}
    first, again = (DAF(trainer=trainer, **options) for _ in range(2))
    Recording(None, tmp_path / "record", trainer.ranks).wrap(first)
    first.learn(task)
    trainer.begin_task()
    (tmp_path / "record" / "per_sample-0001.safetensors").unlink()
    Recording(tmp_path / "record", None, trainer.ranks).wrap(again)
    again.learn(task)
    assert "train" not in trainer.seconds
    assert "fisher" in trainer.seconds  # measured at the recorded adapter, but not written
    assert equal(again.global_adapter.tensors(), first.global_adapter.tensors())
    assert len(list((tmp_path / "record").iterdir())) == 1

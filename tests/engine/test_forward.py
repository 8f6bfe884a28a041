"""The compiled path computes what the plain path computes."""

import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from dafuse.backbones.load import build_backbone
from dafuse.backbones.vit import ViT
from dafuse.engine.forward import Forward, Pass
from dafuse.engine.trainer import fitting_batch
from dafuse.methods.curvature import curvature_at
from dafuse.methods.daf import DAF
from dafuse.methods.training import init_adapter
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer


@pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="torch.compile needs a C++ compiler"
)
def test_compiled_and_plain_learn_the_same() -> None:
    """Training, Fisher, statistics and predictions, with batches that must be filled up.

    Without dropout, whose masks are drawn in another order by compiled code.
    """
    outcomes = []
    for compiled in (False, True):
        dataset = small_dataset([7] * 4)
        trainer = small_trainer(dataset, compiled=compiled)
        method = DAF(
            trainer=trainer, epochs=2, batch_size=8, adapter_rank=4, adapter_dropout=0.0,
            align_epochs=2, align_samples=16, first_task="fuse",
        )  # fmt: skip
        stream = small_stream(dataset, [2, 2])
        diagnoses = [method.learn(task) for task in stream]
        with torch.no_grad():
            ((images, _),) = trainer.batches(stream[1].test)
            outcomes.append((method, trainer, diagnoses, method.logits(images[:3])))
    (plain, eager, before, scores), (fast, inductor, after, same_scores) = outcomes
    assert inductor.epoch_losses == pytest.approx(eager.epoch_losses, abs=1e-5)
    for key, tensor in plain.state().items():
        assert torch.allclose(tensor, fast.state()[key], atol=1e-3), key
    for a, b in zip(before, after, strict=True):
        assert a["bound"] == pytest.approx(b["bound"], rel=1e-3)
    assert torch.allclose(scores, same_scores, atol=1e-2)


def test_compiled_code_that_is_wrong_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong from the second call on, as code would be that was compiled for another attachment."""
    dataset, said = small_dataset([3, 3]), []
    trainer = small_trainer(dataset)
    trainer.forward = Forward(trainer.network, trainer.fabric, 4, True, said.append)
    calls: list[int] = []

    def compiled_wrongly(network: ViT) -> Callable[..., torch.Tensor]:
        calls.append(1)
        return lambda images, *how: network(images, *how) * (2 if len(calls) > 1 else 1)

    monkeypatch.setattr("dafuse.engine.forward.compiled", compiled_wrongly)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        right = trainer.network(images)
        for _ in range(5):
            assert torch.allclose(trainer.encode(images, None), right, atol=1e-5)
    assert len(calls) == 2  # then never again
    assert said == ["compiled code gives features that are off by 100%; going on without compiling"]


def test_a_pass_is_that_of_the_adapter_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folded network stays one; what is in it follows the adapters."""
    made: set[int] = set()

    def uncompiled(network: ViT) -> ViT:
        made.add(id(network))
        return network

    monkeypatch.setattr("dafuse.engine.forward.compiled_tightly", uncompiled)
    trainer = small_trainer(small_dataset([3, 3]))
    images, generator = torch.randn(3, 3, 32, 32), torch.Generator().manual_seed(2)
    adapters = [init_adapter(trainer, number, rank=4) for number in range(2)]
    one_pass = Pass(trainer.network, folds=True, graphs=False, say=print)
    with torch.no_grad():
        for changed in (0, 1, 0, 0):
            for name, parameter in adapters[changed].named_parameters():
                values = torch.randn(parameter.shape, generator=generator)
                if name == "up.weight":
                    parameter.data = values  # elsewhere
                else:
                    parameter.copy_(values)
            for adapter in [*adapters, *adapters]:
                found, right = one_pass(images, adapter), trainer.network(images, adapter)
                assert torch.allclose(found, right, atol=1e-4)
            assert not torch.allclose(one_pass(images, adapters[changed]), trainer.network(images))
    assert len(made) == 1


def test_training_that_is_replayed_counts_as_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass knows by its tensors' versions that an adapter changed; replays leave them alone."""
    monkeypatch.setattr("dafuse.engine.forward.compiled_tightly", lambda network: network)
    trainer = small_trainer(small_dataset([3, 3]))
    images, adapter = torch.randn(3, 3, 32, 32), init_adapter(trainer, 0, rank=4)
    one_pass = Pass(trainer.network, folds=True, graphs=False, say=print)
    with torch.no_grad():
        before = one_pass(images, adapter)
        with trainer.forward.training(adapter, 4):
            for parameter in adapter.parameters():
                parameter.data.normal_()  # as replays do, behind the back of the version
        assert torch.allclose(
            one_pass(images, adapter), trainer.network(images, adapter), atol=1e-3
        )
        assert not torch.allclose(one_pass(images, adapter), before, atol=0.1)


def test_batches_are_filled_up_to_the_size_that_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Fisher pass, whose size is its own, fills them up, too."""
    sizes: list[int] = []

    def uncompiled(network: ViT) -> Callable[..., torch.Tensor]:
        return lambda images, *how: (sizes.append(len(images)), network(images, *how))[1]

    monkeypatch.setattr("dafuse.engine.forward.compiled", uncompiled)
    dataset = small_dataset([5, 5])
    trainer, (task,) = small_trainer(dataset), small_stream(dataset, [2])
    adapter, head = init_adapter(trainer, 0, rank=4), torch.randn(2, trainer.network.width)
    plain = curvature_at(trainer, task, adapter, head)
    trainer.forward = Forward(trainer.network, trainer.fabric, 16, compiles=True)
    trainer.gradient_batch = 8
    found = curvature_at(trainer, task, adapter, head)
    curvature_at(trainer, task, adapter, head, per_batch=4)
    trainer.features(task.train, adapter)
    assert sizes == [8, 8, 4, 4, 4, 16]
    for name, fisher in plain.fisher.items():
        assert torch.allclose(found.fisher[name], fisher, rtol=1e-3, atol=1e-9), name


@pytest.mark.parametrize(
    ("gigabytes", "dtype", "batch"),
    [
        (140, torch.bfloat16, 512),  # never more
        (24, torch.bfloat16, 128),
        (24, torch.float32, 64),
        (8, torch.bfloat16, 32),
        (0.01, torch.bfloat16, 1),
    ],
)
def test_the_batch_of_a_backward_pass_suits_the_devices_memory(
    gigabytes: float, dtype: torch.dtype, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vit = build_backbone("deit_tiny_patch16_224.fb_in1k")
    device = SimpleNamespace(total_memory=int(gigabytes * 2**30))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: device)
    assert fitting_batch(vit, torch.device("cuda"), dtype) == batch


def test_the_size_of_batches_holds_while_they_are_iterated() -> None:
    """Batches within batches have theirs, and so have ones that nobody iterates to the end."""
    dataset = small_dataset([5, 5])
    trainer, (task,) = small_trainer(dataset), small_stream(dataset, [2])
    usual = trainer.forward.full_batch
    for outer, _ in trainer.batches(task.train, 4):
        assert trainer.forward.full_batch == 4 >= len(outer)
        for inner, _ in trainer.batches(task.test):
            assert trainer.forward.full_batch == usual >= len(inner)
        assert trainer.forward.full_batch == 4
        next(trainer.batches(task.train, 3))
        assert trainer.forward.full_batch == 4
    assert trainer.forward.full_batch == usual

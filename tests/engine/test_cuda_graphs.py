"""Steps and forward passes as CUDA graphs do what the plain ones do. Needs a CUDA device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dafuse.backbones.adapter import Adapter
from dafuse.engine.cuda_graphs import GraphedWork
from dafuse.engine.trainer import Trainer
from dafuse.heads.alignment import Step, align
from dafuse.heads.gaussians import Sampler
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import fit_with_proxy, init_adapter
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def training(
    monkeypatch: pytest.MonkeyPatch,
    optimiser: str,
    device: str = "cuda",
    graphed: bool = True,
    waits: bool = False,
) -> tuple[list[float], Tensor, list[str]]:
    """Losses of eight epochs of two batch sizes, the rate falling, what was trained and said."""
    said: list[str] = []
    dataset = small_dataset([13, 13])
    trainer = small_trainer(dataset, device=device)
    monkeypatch.setattr(trainer.progress, "say", said.append)
    if not graphed:
        monkeypatch.setattr(trainer, "graphed", lambda step, what: step)
    start = torch.randn(2, 3 * 32 * 32, generator=torch.Generator().manual_seed(3)) * 0.01
    weight = nn.Parameter(start.to(device))
    pulled = torch.zeros_like(weight)

    def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        if waits:  # masks are drawn as before, whatever the capture that failed drew
            images_B3SS = nn.functional.dropout(images_B3SS, 0.1)
        value = nn.functional.cross_entropy(images_B3SS.flatten(1) @ weight.T, labels_B)
        if waits and float(value.detach()) < 0:
            raise AssertionError
        return value

    @torch.no_grad()
    def pull() -> None:
        weight.lerp_(pulled, 0.01)

    how = Schedule(8, 6, lr=0.002, weight_decay=1e-3, optimiser=optimiser)  # type: ignore[arg-type]
    groups = [Group([weight], 0.5)]
    trainer.fit(small_stream(dataset, [2])[0], None, loss, groups, how, after_step=pull)
    return trainer.epoch_losses, weight.detach().cpu(), said


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_graphed_steps_train_as_plain_ones(optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, _ = training(monkeypatch, optimiser, device="cpu")
    replayed, weight, said = training(monkeypatch, optimiser)
    assert replayed == pytest.approx(plain, rel=1e-3)
    torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-5)
    assert len(set(replayed)) == 8
    assert not said


def test_a_step_that_waits_for_the_device_goes_on_ungraphed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, *_ = training(monkeypatch, "sgd", graphed=False, waits=True)
    ungraphed, _, said = training(monkeypatch, "sgd", waits=True)
    assert ungraphed == pytest.approx(plain, rel=1e-3)
    (line,) = said
    assert "this training step cannot be captured as a CUDA graph" in line


def test_graphed_passes_are_those_of_the_adapter_as_it_is_now() -> None:
    """Values changed in place or by replayed steps, tensors put elsewhere, adapters that go."""
    dataset = small_dataset([7, 7])
    trainer = small_trainer(dataset, device="cuda", compiled=True)
    task = small_stream(dataset, [2])[0]
    images = torch.randn(4, 3, 32, 32, device="cuda")

    def off(adapter: Adapter | None) -> float:
        with torch.no_grad():
            found, right = trainer.encode(images, adapter), trainer.network(images, adapter)
        return float((found - right).norm() / right.norm())

    kept = _random_adapter(trainer, 0)
    for number in range(12):
        passing = _random_adapter(trainer, number)
        for _ in range(6):
            assert max(map(off, [passing, kept, None])) < 1e-3
        if number == 3:
            kept.down.weight.data = 2 * kept.down.weight.data  # elsewhere
        elif number == 6:
            before = kept.tensors()
            fit_with_proxy(trainer, task, kept, Schedule(4, 4, lr=0.1))  # graphed steps
            assert not torch.equal(kept.tensors()["up.weight"], before["up.weight"])
        else:
            kept.set(_random_adapter(trainer, 50 + number).tensors())  # in place
    assert trainer.forward.compiles


def test_graphed_alignment_gives_the_rows_of_plain_alignment() -> None:
    said: list[str] = []
    generator = torch.Generator("cuda").manual_seed(1)
    means = torch.randn(7, 12, device="cuda", generator=generator)
    sampler = Sampler(means, torch.randn(7, 12, 12, device="cuda", generator=generator), None)
    start = torch.randn(7, 12, device="cuda", generator=generator)

    def aligned(faster: Callable[[Step], Step] | None) -> Tensor:
        seeded = torch.Generator("cuda").manual_seed(2)
        return align(start, sampler, seeded, epochs=5, samples=16, lr=0.1, faster=faster)

    graphed = aligned(lambda step: GraphedWork(step, "a step", said.append))
    torch.testing.assert_close(graphed, aligned(None), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(graphed, start, atol=1e-2)
    assert not said


def _random_adapter(trainer: Trainer, number: int) -> Adapter:
    adapter = init_adapter(trainer, number, rank=4)
    generator = torch.Generator("cuda").manual_seed(number)
    for parameter in adapter.parameters():
        parameter.data.normal_(generator=generator)
    return adapter

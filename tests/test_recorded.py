"""Recorded training steps do what the steps do. Needs a CUDA device."""

import pytest
import torch
from torch import Tensor, nn

from dafuse.engine.recorded import RecordedStep
from dafuse.engine.training import _optimiser, _set_rates
from dafuse.methods.schedule import Group, Schedule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def training(recorded: bool, optimiser: str, waits: bool = False) -> tuple[list[float], list[str]]:
    """Losses of forty steps of two batch sizes, the rate falling, and what was said."""
    device, said = torch.device("cuda"), []
    generator = torch.Generator(device).manual_seed(3)
    weight = nn.Parameter(torch.randn(5, 3 * 8 * 8, device=device, generator=generator) * 0.1)
    schedule = Schedule(4, 6, lr=0.05, weight_decay=1e-3, optimiser=optimiser)  # type: ignore[arg-type]
    tuned = _optimiser([Group([weight], 0.5)], schedule, device if recorded else None)
    pulled = torch.zeros_like(weight)

    def step(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        tuned.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(images_B3SS.flatten(1) @ weight.T, labels_B)
        loss.backward()
        tuned.step()
        if waits and float(loss) < 0:
            raise AssertionError
        with torch.no_grad():
            weight.lerp_(pulled, 0.01)
        return loss.detach()

    take = RecordedStep(step, said.append) if recorded else step
    losses = []
    for epoch in range(8):
        _set_rates(tuned, 1 - epoch / 10)
        for size in (6, 6, 6, 6, 2):
            images = torch.randn(size, 3, 8, 8, device=device, generator=generator)
            labels = torch.randint(5, (size,), device=device, generator=generator)
            losses.append(take(images, labels))
    return [float(loss) for loss in losses], said


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_recorded_steps_train_as_plain_ones(optimiser: str) -> None:
    plain, _ = training(recorded=False, optimiser=optimiser)
    replayed, said = training(recorded=True, optimiser=optimiser)
    assert replayed == pytest.approx(plain, rel=1e-3)
    assert len(set(replayed)) == 40
    assert not said


def test_a_step_that_waits_for_the_device_goes_on_unrecorded() -> None:
    plain, _ = training(recorded=False, optimiser="sgd")
    unrecorded, said = training(recorded=True, optimiser="sgd", waits=True)
    assert unrecorded == pytest.approx(plain, rel=1e-3)
    (line,) = said
    assert "cannot be recorded" in line

"""Features under the global adapter against the bare network, and against twenty task adapters."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dafuse.backbones.adapter import AdapterBank
from dafuse.backbones.attach import Attachment
from dafuse.backbones.registry import COMPACT
from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
from dafuse.benchmarks.setting import (
    DEIT_TINY,
    SEED,
    VIT_BASE,
    Parts,
    Setting,
    network,
    random_images,
    short,
    world,
)
from dafuse.engine.devices import seconds
from dafuse.engine.trainer import Trainer
from dafuse.methods.training import init_adapter
from dafuse.seeds import torch_generator

GOAL = Goal("ratio", least=0.97)
RANK = 16


@dataclass(frozen=True)
class InferenceSizes:
    networks: tuple[str, ...]
    batches: dict[int, int]  # batch size -> number of batches in a round
    adapters: int  # of the method that predicts with all of them; 0: not measured
    asked: int  # images for that method, which cuts them into small batches


GPU = InferenceSizes((DEIT_TINY, VIT_BASE), {1: 100, 256: 10}, 20, 256)
CPU = InferenceSizes((COMPACT,), {1: 20, 256: 1}, 20, 32)
QUICK = InferenceSizes((COMPACT,), {1: 2, 8: 1}, 3, 8)


def parts(setting: Setting) -> Parts:
    """Return parts for the chosen device and, if it is a GPU, for the CPU too."""
    sizes = setting.sizes({"gpu": GPU, "cpu": CPU, "quick": QUICK})
    tags = (setting.backbone,) if setting.backbone else sizes.networks
    found: Parts = {short(tag): partial(_measure, setting, sizes, tag, None) for tag in tags}
    if setting.on_gpu:
        few = QUICK if setting.quick else replace(CPU, adapters=0)
        found[f"{short(COMPACT)} on the CPU"] = partial(_measure, setting, few, COMPACT, "cpu")
    return found


def _measure(
    setting: Setting, sizes: InferenceSizes, tag: str, device: str | None
) -> list[BenchRow]:
    vit = network(tag)
    trainer, _ = world(vit, random_images(2, 1), 2, setting.fabric(device))
    adapter = init_adapter(trainer, "global", RANK)
    bank = AdapterBank()
    for number in range(sizes.adapters):
        bank.append(init_adapter(trainer, number, RANK).tensors())
    rows: list[BenchRow] = []
    for batch, repeats in sizes.batches.items():
        size = vit.preprocessing.size, vit.preprocessing.size
        images_B3SS = torch.randn(batch, 3, *size, generator=torch_generator(SEED, "inference"))
        images_B3SS = images_B3SS.to(trainer.device)
        measures = {
            "bare": partial(_rate, trainer, images_B3SS, None, repeats),
            "adapter": partial(_rate, trainer, images_B3SS, adapter, repeats),
        }
        if bank and batch == max(sizes.batches):
            measures["bank"] = partial(_rate, trainer, images_B3SS[: sizes.asked], bank, 1)
        label = f"batch {batch}"
        measured = setting.alternate(measures, label, warm_up=tuple(measures))
        rows += _rows(label, measured, len(bank), None if setting.quick else GOAL)
    return rows


@torch.no_grad()
def _rate(
    trainer: Trainer, images_B3SS: Tensor, attached: Attachment | None, repeats: int
) -> float:
    def work() -> None:
        for _ in range(repeats):
            trainer.encode(images_B3SS, attached)

    with trainer.forward.batches_of(len(images_B3SS)):  # so that none is padded
        return len(images_B3SS) * repeats / seconds(work, trainer.device)


def _rows(
    label: str, measured: dict[str, Measured], adapters: int, goal: Goal | None
) -> list[BenchRow]:
    bare = "the bare network", measured["bare"]
    rows = [
        compared(f"{label}, bare network", "images/s", measured["bare"]),
        compared(f"{label}, global adapter", "images/s", measured["adapter"], bare, goal=goal),
    ]
    if "bank" in measured:
        what = f"{label}, {adapters} task adapters"
        rows.append(
            compared(what, "images/s", measured["bank"], bare, note="every image, each adapter")
        )
    return rows

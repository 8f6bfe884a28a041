"""Devices and precision, through Lightning Fabric."""

import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy

from dafuse.errors import DafuseError

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


def launch(
    device: str, precision: str, deterministic: bool, devices: int = 1, nodes: int = 1
) -> Fabric:
    """Return a Fabric on ``auto``, ``cpu``, ``cuda`` or ``mps``: one device of it, or several.

    Several have a process each, which `Ranks.begin` starts and connects.
    """
    if precision not in PRECISIONS:
        raise DafuseError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise DafuseError(f"device must be auto, cpu, cuda or mps, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise DafuseError("device cuda was asked for, but torch sees no CUDA device; try cpu")
    if device == "mps" and not torch.backends.mps.is_available():
        raise DafuseError("device mps was asked for, but torch sees no MPS device; try cpu")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    how: dict[str, Any] = {"accelerator": device, "precision": PRECISIONS[precision]}
    if devices * nodes > 1:
        _require_there(device, devices)
        how |= {"num_nodes": nodes, "strategy": DDPStrategy()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Fabric's advice on other accelerators
        return Fabric(devices=devices, **how)


def _require_there(device: str, devices: int) -> None:
    """Refuse more devices than this machine has; on a CPU each is a process on a processor."""
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        there, what = torch.cuda.device_count(), "CUDA devices"
    elif device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        there, what = 1, "MPS devices"
    else:
        there, what = os.cpu_count() or 1, "processors"
    if devices > there:
        raise DafuseError(
            f"--devices {devices} is more than the {there} {what} of this machine: "
            f"give at most {there}"
        )


def describe(device: torch.device, count: int = 1) -> str:
    """Name the device, with the number of processes that have one each."""
    if device.type == "cuda":
        name = f"cuda ({torch.cuda.get_device_name(device)})"
    else:
        name = f"{device.type} ({torch.get_num_threads()} threads)"
    return name if count == 1 else f"{count} x {name}"


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the device has finished this work."""
    wait_for(device)
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start

"""Devices and precision, through Lightning Fabric."""

import logging
import os
import time
import warnings
from collections.abc import Callable

import torch
from lightning_fabric import Fabric

from dafuse.errors import DafuseError

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


def launch(device: str, precision: str, deterministic: bool) -> Fabric:
    """Return a Fabric on one device: ``auto``, ``cpu``, ``cuda`` or ``mps``."""
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Fabric's advice on other accelerators
        return Fabric(accelerator=device, devices=1, precision=PRECISIONS[precision])


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({torch.get_num_threads()} threads)"


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

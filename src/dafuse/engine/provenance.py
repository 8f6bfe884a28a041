"""The provenance of a run: command, versions, device, weights, data."""

import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import dafuse
from dafuse.backbones.network import Network
from dafuse.data.batches import Loader
from dafuse.engine.devices import describe

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")


def versions() -> dict[str, str]:
    installed = {"dafuse": dafuse.__version__, "python": platform.python_version()}
    return installed | {package: version(package) for package in PACKAGES}


def compared_inputs(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the inputs of a run, each with its hash in both provenances."""
    return [
        ("weights", before["weights"]["sha256"], now["weights"]["sha256"]),
        ("data", before["data_fingerprint"], now["data_fingerprint"]),
    ]


def command_line() -> str:
    """Return what the user typed: dafuse for `python -m dafuse`, a script by its name."""
    name = Path(sys.argv[0]).name
    return shlex.join(["dafuse" if name == "__main__.py" else name, *sys.argv[1:]])


def provenance(
    network: Network, loader: Loader, device: torch.device, count: int = 1
) -> dict[str, Any]:
    """Return the provenance of a run on so many devices."""
    dataset = loader.dataset
    return {
        "format": 1,
        "command": command_line(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": describe(device, count),
        "weights": {"tag": network.tag, "sha256": network.sha256, "source": network.source},
        "data_fingerprint": dataset.fingerprint(),
        "images": {"train": len(dataset.train), "test": len(dataset.test)},
        "reading": "streamed" if loader.streams else "decoded once",
    }

"""`dafuse doctor`: versions, devices, weights and data: what is here, and what to do about it."""

import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from dafuse import __version__
from dafuse.errors import DafuseError

PACKAGES = ("numpy", "pillow", "onnxruntime", "torch", "torchvision", "timm")
MODULES = {"pillow": "PIL"}  # where a package is imported by another name


def doctor() -> None:
    """Show what is here, and what to do about what is not."""
    console = Console(highlight=False, soft_wrap=True)
    console.print("versions  " + ", ".join(f"{k} {v}" for k, v in versions().items()), markup=False)
    for check in (_devices, _weights, _data):
        for good, line in check():
            console.print("[green]ok[/]  " if good else "[yellow]--[/]  ", end="")
            console.print(line, markup=False)


def versions() -> dict[str, str]:
    """Versions of dafuse, Python and those packages of these that are installed."""
    found = {"dafuse": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in PACKAGES if find_spec(MODULES.get(name, name))}


def _devices() -> list[tuple[bool, str]]:
    if find_spec("torch") is None:
        what = "methods that train, networks of timm and research need it"
        return [(False, f"torch: not installed; {what}: pip install 'dafuse[torch]'")]
    import torch

    cores = f"cpu: {os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"
    lines = [(True, cores)]
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        name = torch.cuda.get_device_name(i)
        lines.append((True, f"cuda: {name}, {free >> 30} of {total >> 30} GiB free"))
    if not torch.cuda.is_available():
        lines.append((False, "cuda: none; training on the CPU suits the demo and small data"))
    return lines


def _weights() -> list[tuple[bool, str]]:
    from dafuse.backbones.registry import BACKBONES
    from dafuse.backbones.weights import cached, check_hash, exported, locate

    lines = []
    for tag, backbone in BACKBONES.items():
        if network := exported(tag):
            lines.append(_exported_weights(tag, network))
            continue
        path, source = locate(tag)
        path = path or (cached(backbone) if find_spec("huggingface_hub") else None)
        if path is None:
            what_to_do = (
                f"not here: fetched from the hub at first use; offline, put {tag}.safetensors "
                "into the folder $DAFUSE_WEIGHTS"
            )
            lines.append((False, f"weights {tag}: {what_to_do}"))
            continue
        try:
            digest = check_hash(path, tag, None, trusted=source == "hub")
            note = "known" if backbone.sha256 else "not one that was checked before"
            lines.append((True, f"weights {tag}: {path}, SHA-256 {digest[:12]}… ({note})"))
        except (DafuseError, OSError) as error:
            lines.append((False, f"weights {tag}: {error}"))
    return lines


def _exported_weights(tag: str, network: Path) -> tuple[bool, str]:
    from dafuse.backbones.card import require_sealed_onnx

    try:
        require_sealed_onnx(network)
    except (DafuseError, OSError) as error:
        return False, f"weights {tag}: {error}"
    return True, f"weights {tag}: {network}, exported"


def _data() -> list[tuple[bool, str]]:
    from dafuse.data.registry import DATASETS, availability

    return [
        (here, f"data {name}: {where}") for name in DATASETS for here, where in [availability(name)]
    ]

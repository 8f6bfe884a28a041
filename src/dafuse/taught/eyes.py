"""The frozen network of a model, by onnxruntime where that will do, else by torch."""

from importlib.util import find_spec

from dafuse.backbones.extractor import Extractor
from dafuse.backbones.weights import BACKBONES, COMPACT
from dafuse.errors import DafuseError, did_you_mean
from dafuse.taught.table import before_torch


def open_eye(
    tag: str,
    weights: str | None = None,
    sha256: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    trains: bool = False,
) -> Extractor:
    """Open the network of this tag, with these very weights.

    Args:
        tag: exact timm tag, or that of the network inside the package
        weights: a local .safetensors file with its weights
        sha256: of the weights that it must have
        device: auto, cpu, cuda or mps; onnxruntime works on the CPU
        threads: how many; default: one for each processor
        trains: the method trains modules inside the network, which torch does
    """
    by_onnxruntime = tag == COMPACT and not weights and device in ("auto", "cpu") and not trains
    if by_onnxruntime and sha256 in (None, *BACKBONES[COMPACT].sha256):
        return Extractor.embedded(threads)
    if find_spec("torch") is None or find_spec("timm") is None:
        why = _why_torch(tag, weights, device, trains)
        raise DafuseError(f"{why} torch, which is not installed: pip install 'dafuse[torch]'")
    before_torch()
    from dafuse.taught.torch_eye import TorchExtractor

    return TorchExtractor.load(tag, weights, sha256, device, threads)


def _why_torch(tag: str, weights: str | None, device: str, trains: bool) -> str:
    """What asks for torch, as the beginning of a sentence."""
    if tag not in BACKBONES:
        hint = did_you_mean(tag, BACKBONES)
        other = f"{hint} Another" if hint else "; any"
        return f"dafuse itself knows no backbone {tag}{other} tag of timm needs"
    if device in ("cuda", "mps"):
        return f"the device {device} needs"
    if trains:
        return "a method that trains needs"
    if tag != COMPACT:
        return f"the backbone {tag} needs"
    if weights:
        return f"reading {weights} (--weights) needs"
    return f"a model taught with other weights of {tag} needs"

"""Opening a model's frozen network: by onnxruntime if possible, else by torch."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dafuse.backbones.backbone import Need, in_words, require_offered
from dafuse.backbones.extractor import PROVIDERS, Extractor, available_on, require_device
from dafuse.backbones.registry import BACKBONES, CHOICES, is_packaged, tag_named
from dafuse.backbones.weights import EXPORTED, FOLDERS, exported
from dafuse.errors import DafuseError, did_you_mean
from dafuse.taught.table import before_torch

if TYPE_CHECKING:
    from dafuse.taught.contract import Teachable


class Wanted(NamedTuple):
    """The demands of a method on its network."""

    method: str = "the method"  # for messages
    need: Need = "features"
    by_torch: bool = False  # whether it computes by torch

    @classmethod
    def by(cls, taught: "type[Teachable]", method: str, settings: dict[str, Any]) -> "Wanted":
        return cls(in_words(method, settings), taught.needs(settings), taught.needs_torch)


def open_extractor(
    backbone: str | Path,
    weights: str | None = None,
    sha256: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    wanted: Wanted | None = None,
    file: str = "",
    devices: int = 1,
) -> Extractor:
    """Open a network with exactly these weights.

    Args:
        backbone: a named choice, an exact timm tag, or an .onnx file of `dafuse backbone export`
        weights: a local file with its weights: .safetensors, or the network exported as .onnx
        sha256: the SHA-256 that the weights must have
        device: auto, cpu, cuda or mps
        threads: number of threads; default: one for each processor
        wanted: the needs of the method; default: features only
        file: the .onnx file from which the network was opened before; it may be gone
        devices: how many share out lessons that train, a process each
    """
    require_device(device)
    tag, wanted = tag_named(str(backbone)), wanted or Wanted()
    if is_exported_network(tag):
        if weights:
            raise DafuseError(f"{backbone} has its weights inside: leave out --weights")
        return _open_given(tag, None, sha256, device, threads, wanted)
    if weights and is_exported_network(weights):
        return _open_given(weights, tag, sha256, device, threads, wanted)
    if not weights and not wanted.by_torch:
        if is_packaged(tag, sha256) and available_on(device):
            return Extractor.embedded(tag, threads, device)
        if found := _open_found(tag, sha256, device, threads, file):
            return found
    try:
        return _open_by_torch(tag, weights, sha256, device, threads, wanted, devices)
    except DafuseError as error:
        if not file or weights or Path(file).is_file():
            raise
        raise DafuseError(
            f"{file}, the network that the model was taught with, is gone (--weights FILE names "
            f"its new place); by torch: {error}"
        ) from None


def is_exported_network(name: str) -> bool:
    """Tell whether this names a file, not a tag."""
    return name.lower().endswith(EXPORTED)


def _open_given(
    file: str, tag: str | None, sha256: str | None, device: str, threads: int | None, wanted: Wanted
) -> Extractor:
    """Open a network exported to a file; its tag and hash must be these, if they are known."""
    extractor = Extractor(file, threads, device)
    if wanted.by_torch:
        raise DafuseError(
            f"{wanted.method} computes by torch, and {file} is an exported network, for methods "
            "without torch (lift, simplecil): leave out --method and --tune, or name --backbone "
            f"{extractor.tag}"
        )
    if tag not in (None, extractor.tag):
        raise DafuseError(
            f"{file} holds the network {extractor.tag}, not {tag}; a new model takes it by "
            "--backbone"
        )
    if sha256 not in (None, extractor.sha256):
        raise DafuseError(
            f"the model was taught with {extractor.tag} of SHA-256 {sha256}, and {file} holds one "
            f"of {extractor.sha256}: with other weights it would answer nonsense"
        )
    return extractor


def _open_found(
    tag: str, sha256: str | None, device: str, threads: int | None, file: str
) -> Extractor | None:
    """Open the network from its former file, or from a folder of $DAFUSE_WEIGHTS; else None."""
    for path in (Path(file) if file else None, exported(tag)):
        if path is not None and path.is_file():
            extractor = Extractor(path, threads, device)
            if extractor.tag == tag and sha256 in (None, extractor.sha256):
                return extractor
    return None


def _open_by_torch(
    tag: str,
    weights: str | None,
    sha256: str | None,
    device: str,
    threads: int | None,
    wanted: Wanted,
    devices: int,
) -> Extractor:
    if find_spec("torch") is None or find_spec("timm") is None:
        why = _why_torch(tag, weights, device, wanted)
        raise DafuseError(f"{why} torch, which is not installed: pip install 'dafuse[torch]'")
    before_torch()
    from dafuse.backbones.load import build_backbone, with_weights
    from dafuse.taught.torch_extractor import TorchExtractor

    network = build_backbone(tag)
    require_offered(wanted.method, wanted.need, tag, network.offers)
    return TorchExtractor(with_weights(network, weights, sha256), device, threads, devices)


def _why_torch(tag: str, weights: str | None, device: str, wanted: Wanted) -> str:
    """Say what needs torch, as the beginning of a sentence."""
    if wanted.by_torch:
        return "a method that trains needs"
    if tag not in BACKBONES:
        hint = did_you_mean(tag, [*CHOICES, *BACKBONES])
        other = f"{hint} Another" if hint else "; any"
        return f"dafuse itself knows no backbone {tag}{other} tag of timm needs"
    if not is_packaged(tag):
        return f"the backbone {tag} (where no folder of ${FOLDERS} has {tag}{EXPORTED}) needs"
    if not available_on(device):
        package = PROVIDERS[device][1]
        return f"the device {device} needs" + (f" {package} or" if package else "")
    if weights:
        return f"reading {weights} (--weights) needs"
    return f"a model taught with other weights of {tag} needs"

"""Which weights there are, where they come from, and that they are the right ones.

A backbone is named by its exact timm tag, never by a bare architecture name (the same bare name
means different weights in different timm versions). Its file is looked for, in this order:
a file given by the user, the package itself, the folder ``$DAFUSE_WEIGHTS``, timm's hub.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dafuse.data.network import reachable
from dafuse.data.preprocessing import NORMALISATIONS, Preprocessing
from dafuse.errors import DafuseError
from dafuse.progress import Progress

COMPACT = "dafuse_compact_patch8_64.v1"


@dataclass(frozen=True)
class NamedWeights:
    """A registered set of weights."""

    tag: str
    summary: str
    architecture: str  # timm's name for the network
    arguments: dict[str, Any] = field(default_factory=dict)  # what else timm needs to build it
    preprocessing: dict[str, Any] = field(default_factory=dict)  # where timm's is not theirs
    packaged: str = ""  # file name inside the package, if it is there
    sha256: tuple[str, ...] = ()  # files known to hold these weights; empty: none verified yet


BACKBONES = {
    b.tag: b
    for b in (
        NamedWeights(
            COMPACT,
            "the embedded default: 64 px, 5.4 M parameters, distilled from DeiT-Tiny",
            "vit_tiny_patch16_224",
            {"img_size": 64, "patch_size": 8},
            {
                "input_size": (3, 64, 64),
                "mean": NORMALISATIONS["imagenet"][0],
                "std": NORMALISATIONS["imagenet"][1],
            },
            packaged="dafuse_compact_patch8_64.safetensors",
            sha256=("2156682238805349eda52df4c8e0b9fce534b19f4a9e47b4d8c3271086c6a5b8",),
        ),
        NamedWeights(
            "deit_tiny_patch16_224.fb_in1k",
            "DeiT-Tiny, ImageNet-1k, 224 px",
            "deit_tiny_patch16_224",
            sha256=("0af164d9dc507fd8d9e16b38fe09661fe68beabbbcfed644ff007bfc7bb032c6",),
        ),
        NamedWeights(
            "vit_base_patch16_224.augreg_in21k",
            "the DAF paper's ViT-B/16-IN21K",
            "vit_base_patch16_224",
        ),
        NamedWeights(
            "vit_base_patch16_224.augreg_in21k_ft_in1k",
            "the DAF paper's ViT-B/16-IN1K (21k weights fine-tuned on 1k)",
            "vit_base_patch16_224",
        ),
    )
}


def locate(tag: str, file: str | None = None) -> tuple[Path | None, str]:
    """The weights' file and where it was found: "file", "package", "folder", or (None, "hub")."""
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise DafuseError(f"the weights file {file} does not exist")
        if path.suffix != ".safetensors":
            raise DafuseError(f"weights must be a .safetensors file, not {file}")
        return path, "file"
    known = BACKBONES.get(tag)
    if known and known.packaged:
        path = Path(__file__).with_name(known.packaged)
        if not path.is_file():
            raise DafuseError(f"{path} is missing: install dafuse again")
        return path, "package"
    for folder in filter(None, os.environ.get("DAFUSE_WEIGHTS", "").split(os.pathsep)):
        names = [tag]
        if known and known.sha256:  # a bare name may be any weights: only where they are checked
            names.append(known.architecture)
        for name in names:
            path = Path(folder) / f"{name}.safetensors"
            if path.is_file():
                return path, "folder"
    return None, "hub"


def cached(tag: str) -> Path | None:
    """The weights' file if the hub's cache on this machine has it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(f"timm/{tag}", "model.safetensors")
    return Path(found) if isinstance(found, str) else None


def fetch(tag: str, progress: Progress) -> Path:
    """The weights' file from the hub's cache or, with a network, the hub. Fails in seconds."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repository, name = f"timm/{tag}", "model.safetensors"
    try:
        return Path(hf_hub_download(repository, name, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    help_text = (
        f"download model.safetensors of timm/{tag} on a machine with a network, then pass "
        f"--weights FILE or put it as {tag}.safetensors into the folder $DAFUSE_WEIGHTS; "
        f"--backbone {COMPACT} needs no download"
    )
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if not reachable(endpoint):
        raise DafuseError(
            f"the weights {tag} are not here and the hub cannot be reached: {help_text}"
        )
    progress.say(f"downloading {tag} from the hub")
    try:
        return Path(hf_hub_download(repository, name))
    except RepositoryNotFoundError:
        raise DafuseError(f"the hub has no weights timm/{tag}; check the tag") from None
    except (HfHubHTTPError, OSError) as error:
        raise DafuseError(f"downloading {tag} failed ({error}): {help_text}") from None


def check_hash(path: Path, tag: str, expected: str | None, trusted: bool = False) -> str:
    """The file's SHA-256, if it is one that is known for the tag or the one the user expects.

    What the hub delivers under a tag is that tag's by definition: ``trusted``.
    """
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = BACKBONES[tag].sha256 if tag in BACKBONES else ()
    if expected is not None and digest != expected.lower():
        raise DafuseError(f"{path} has SHA-256 {digest}, not {expected}")
    if expected is None and known and not trusted and digest not in known:
        raise DafuseError(
            f"{path} has SHA-256 {digest}, which is not known to be {tag}; if you trust it, "
            f"pass --weights_sha256 {digest}"
        )
    return digest


def preprocessing_of(timm_config: dict[str, Any], normalize: str) -> Preprocessing:
    """Size and normalisation of the tag, or another normalisation where asked; 256 for 224."""
    size = timm_config["input_size"][-1]
    if normalize == "weights":
        mean, std = tuple(timm_config["mean"]), tuple(timm_config["std"])
    elif normalize in NORMALISATIONS:
        mean, std = NORMALISATIONS[normalize]
    else:
        names = ", ".join(["weights", *NORMALISATIONS])
        raise DafuseError(f"normalize must be one of {names}, not {normalize!r}")
    return Preprocessing(size, mean, std, resize=round(size * 256 / 224))

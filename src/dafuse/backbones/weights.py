"""The weights files: where they are, whether they are the right ones, and their preprocessing.

A file is looked for in this order: a file given by the user, the package, the folders of
``$DAFUSE_WEIGHTS``, the hub. No torch here.
"""

import hashlib
import math
import os
import re
from pathlib import Path
from typing import Any

from dafuse.backbones.registry import BACKBONES, NamedWeights
from dafuse.data.connectivity import reachable
from dafuse.data.preprocessing import CROPS, INTERPOLATIONS, NORMALISATIONS, Preprocessing
from dafuse.errors import DafuseError
from dafuse.progress import Progress

FOLDERS = "DAFUSE_WEIGHTS"  # the environment variable with folders of weights
FILE = "model.safetensors"  # the hub's name for a file of weights
EXPORTED = ".onnx"  # suffix of an exported network


def locate(tag: str, file: str | None = None) -> tuple[Path | None, str]:
    """Return the weights' file and its place: "file", "package", "folder"; or (None, "hub")."""
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
    names = [f"{tag}.safetensors"]
    if known and known.sha256:  # a bare name may have any weights, so only if they can be checked
        names.append(f"{known.architecture}.safetensors")
    found = find_in_folders(*names)
    return (found, "folder") if found else (None, "hub")


def find_in_folders(*names: str) -> Path | None:
    """Return the first file with one of these names in the folders of $DAFUSE_WEIGHTS."""
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        for name in names:
            path = Path(folder).expanduser() / name
            if path.is_file():
                return path
    return None


def exported(tag: str) -> Path | None:
    """Return the tag's network as an .onnx file, if a folder of $DAFUSE_WEIGHTS has it."""
    return find_in_folders(tag + EXPORTED)


def cached(backbone: NamedWeights) -> Path | None:
    """Return the weights' file if the hub's cache on this machine has it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(backbone.hub, FILE)
    return Path(found) if isinstance(found, str) else None


def fetch(backbone: NamedWeights, progress: Progress) -> Path:
    """Get the weights' file from the hub's cache or from the hub. Offline, it fails in seconds."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    tag, repository = backbone.tag, backbone.hub
    if backbone.url:
        raise DafuseError(
            f"the weights {tag} are not on the hub: timm has them at {backbone.url}, in a format "
            "that dafuse does not read; convert them to .safetensors and pass --weights FILE"
        )
    try:
        return Path(hf_hub_download(repository, FILE, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    help_text = (
        f"on a machine with a network fetch {endpoint}/{repository}/resolve/main/{FILE}, name it "
        f"{tag}.safetensors and put it into a folder that ${FOLDERS} names, or pass it by "
        "--weights FILE; a new model with --backbone embedded needs no download"
    )
    if not reachable(endpoint):
        raise DafuseError(
            f"the weights {tag} are not here and the hub cannot be reached: {help_text}"
        )
    progress.say(f"downloading {tag} from the hub")
    try:
        return Path(hf_hub_download(repository, FILE))
    except RepositoryNotFoundError:
        raise DafuseError(f"the hub has no weights {repository}; check the tag") from None
    except (HfHubHTTPError, OSError) as error:
        raise DafuseError(f"downloading {tag} failed ({error}): {help_text}") from None


def check_hash(path: Path, tag: str, expected: str | None, trusted: bool = False) -> str:
    """Return the file's SHA-256 if it is known for the tag or expected by the user.

    A file that the hub delivers under a tag is ``trusted``: it is that tag's by definition. The
    hub's cache names the file's hash, so later damage is found.
    """
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if trusted and digest != (promised := _hash_by_cache(path) or digest):
        raise DafuseError(
            f"{path} is damaged: its SHA-256 is {digest}, the hub's is {promised}; delete "
            f"{path.resolve()} to have it downloaded again"
        )
    known = BACKBONES[tag].sha256 if tag in BACKBONES else ()
    if expected is not None and digest != expected.lower():
        raise DafuseError(f"{path} has SHA-256 {digest}, not {expected}")
    if expected is None and known and not trusted and digest not in known:
        raise DafuseError(
            f"{path} has SHA-256 {digest}, which is not known to be {tag}; if you trust it, "
            f"pass --weights-sha256 {digest}"
        )
    return digest


def _hash_by_cache(path: Path) -> str:
    """Return the SHA-256 in the file's name in the hub's cache; "" if it has none."""
    blob = path.resolve()  # snapshots/COMMIT/FILE is a link to blobs/SHA-256
    named = blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name)
    return blob.name if named else ""


def preprocessing_of(tag: str, config: dict[str, Any], normalize: str) -> Preprocessing:
    """Return size, resizing and normalisation from timm's configuration of the tag.

    ``config`` may give ``resize``, and ``normalize`` may choose another normalisation.
    """
    _, height, width = config["input_size"]
    interpolation = config["interpolation"]
    crop: Any = config.get("crop_mode") or "center"
    if height != width or interpolation not in INTERPOLATIONS or crop not in CROPS:
        raise DafuseError(
            f"the backbone {tag} takes images of {height} x {width} pixels, {interpolation}, crop "
            f"{crop}, which dafuse does not make: choose another"
        )
    if normalize == "weights":
        mean, std = tuple(config["mean"]), tuple(config["std"])
    elif normalize in NORMALISATIONS:
        mean, std = NORMALISATIONS[normalize]
    else:
        names = ", ".join(["weights", *NORMALISATIONS])
        raise DafuseError(f"normalize must be one of {names}, not {normalize!r}")
    resize = config.get("resize") or math.floor(height / config["crop_pct"])
    return Preprocessing(height, mean, std, resize, interpolation, crop)

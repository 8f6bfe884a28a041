"""Loading a frozen network by its tag, with verified weights."""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dafuse.backbones.any_timm import AnyTimm
from dafuse.backbones.network import Network
from dafuse.backbones.registry import BACKBONES, CHOICES, NamedWeights, tag_named
from dafuse.backbones.staged import Staged, why_not_staged
from dafuse.backbones.vit import ViT, why_not_plain
from dafuse.backbones.weights import check_hash, fetch, locate, preprocessing_of
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError, did_you_mean
from dafuse.progress import Progress


def load_backbone(
    tag: str,
    file: str | None = None,
    sha256: str | None = None,
    normalize: str = "weights",
    progress: Progress | None = None,
) -> Network:
    """Build the network, find its weights, check them, and load them."""
    return with_weights(build_backbone(tag, normalize), file, sha256, progress)


def build_backbone(tag: str, normalize: str = "weights") -> Network:
    """Return the tag's network with random weights, which shows what it offers and costs."""
    backbone = find_backbone(tag)
    # the full tag gives timm's configuration of these exact weights
    name = backbone.architecture if backbone.packaged else backbone.tag
    model = timm.create_model(name, num_classes=0, **backbone.arguments)
    config = {**model.pretrained_cfg, **backbone.preprocessing}
    looks = preprocessing_of(backbone.tag, config, normalize)
    return network_of(model, looks, backbone.tag)


def network_of(model: nn.Module, preprocessing: Preprocessing, tag: str) -> Network:
    """Wrap a timm network: with places for attachments if its family is known."""
    if not why_not_plain(model):
        return ViT(model, preprocessing, tag)
    kind = AnyTimm if why_not_staged(model) else Staged
    return kind(model, preprocessing, tag)


def with_weights(
    network: Network,
    file: str | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Network:
    """Load the network's weights: from a file, the package, a folder or the hub."""
    tag = network.tag
    path, source = locate(tag, file)
    if path is None:
        path = fetch(find_backbone(tag), progress or Progress())
    digest = check_hash(path, tag, sha256, trusted=source == "hub")
    _fill(network.timm, path, tag)
    network.sha256, network.source = digest, source
    return network


def find_backbone(name: str) -> NamedWeights:
    """Return a backbone by its tag or as a named choice, registered here or known to timm."""
    tag = tag_named(name)
    return BACKBONES.get(tag) or _any_timm(tag)


def _fill(model: nn.Module, path: Path, tag: str) -> None:
    """Load the file's tensors into the network, except those of its classifier."""
    try:
        tensors = _without_classifier(load_file(path), model)
        # each timm family reads files of other sizes and of earlier names in its own way
        family = sys.modules[type(model).__module__]
        if adapt := getattr(family, "checkpoint_filter_fn", None):
            tensors = _without_classifier(adapt(tensors, model), model)
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, LookupError, AssertionError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DafuseError(f"{path} does not hold the weights of {tag}: {reason}") from None


def _without_classifier(tensors: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    named = model.pretrained_cfg.get("classifier") or ()
    heads = (named,) if isinstance(named, str) else tuple(named)
    starts = tuple(f"{head}." for head in heads)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(starts)}


def _any_timm(tag: str) -> NamedWeights:
    """Return a tag that is not registered here but that timm knows."""
    architecture, _, which = tag.partition(".")
    tags = timm.list_pretrained(f"{architecture}.*")
    if tag in tags:
        config = timm.get_pretrained_cfg(tag)
        hub, url = config.hf_hub_id or "", config.url or ""
        hub = f"{hub}{tag}" if hub.endswith("/") else hub
        return NamedWeights(tag, "", architecture, repository=hub, url="" if hub else url)
    if tag.endswith(".safetensors"):
        raise DafuseError(
            f"{tag} is a file of weights: name its network by --backbone TAG, and pass the file by "
            "--weights"
        )
    if near := get_close_matches(which, [one.partition(".")[2] for one in tags], n=1):
        raise DafuseError(f"no backbone is called {tag}; did you mean {architecture}.{near[0]}?")
    if tags:
        default = timm.get_pretrained_cfg(architecture).tag
        usual = f"{architecture}.{default}" if default else tags[0]
        count = "one" if len(tags) == 1 else str(len(tags))
        raise DafuseError(
            f"{tag} does not name one set of weights, and timm has {count} of {architecture}: take "
            f"--backbone {usual}"
        )
    hint = did_you_mean(tag, [*CHOICES, *BACKBONES, *timm.list_pretrained()], most=3)
    raise DafuseError(f"no backbone is called {tag or repr(tag)}{hint}")

"""From a tag to a frozen ViT with the right weights in it."""

from pathlib import Path

import timm
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

from dafuse.backbones.vit import ViT, require_plain_vit
from dafuse.backbones.weights import (
    BACKBONES,
    NamedWeights,
    check_hash,
    fetch,
    locate,
    preprocessing_of,
)
from dafuse.errors import DafuseError, did_you_mean
from dafuse.progress import Progress


def load_backbone(
    tag: str,
    file: str | None = None,
    sha256: str | None = None,
    normalize: str = "weights",
    progress: Progress | None = None,
) -> ViT:
    """Build the network, find its weights, check them, and load them."""
    vit = build_backbone(tag, normalize)
    path, source = locate(tag, file)
    if path is None:
        path = fetch(tag, progress or Progress())
    digest = check_hash(path, tag, sha256, trusted=source == "hub")
    _fill(vit.timm, path, tag)
    vit.sha256, vit.source = digest, source
    return vit


def build_backbone(tag: str, normalize: str = "weights") -> ViT:
    """The network of that tag with random weights: all that a measurement of speed needs."""
    backbone = find_backbone(tag)
    # the full tag, so that timm gives the configuration of these very weights
    name = backbone.architecture if backbone.packaged else backbone.tag
    model = require_plain_vit(timm.create_model(name, num_classes=0, **backbone.arguments), tag)
    config = {**model.pretrained_cfg, **backbone.preprocessing}
    return ViT(model, preprocessing_of(config, normalize), tag)


def find_backbone(tag: str) -> NamedWeights:
    """One that is registered here, or that timm knows."""
    return BACKBONES.get(tag) or _any_timm(tag)


def _fill(model: VisionTransformer, path: Path, tag: str) -> None:
    """Put the file's tensors into the network; timm resizes position embeddings if it must."""
    try:
        tensors = {k: v for k, v in load_file(path).items() if not k.startswith("head")}
        model.load_state_dict(checkpoint_filter_fn(tensors, model))
    except (SafetensorError, RuntimeError, LookupError, AssertionError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DafuseError(f"{path} does not hold the weights of {tag}: {reason}") from None


def _any_timm(tag: str) -> NamedWeights:
    """A tag that is not registered here but that timm knows."""
    architecture, dot, _ = tag.partition(".")
    tags = timm.list_pretrained(f"{architecture}.*")
    if dot and tag in tags:
        return NamedWeights(tag, "", architecture)
    if tags:
        raise DafuseError(
            f"{tag} does not name one set of weights; choose one of {', '.join(tags)}"
        )
    hint = did_you_mean(tag, [*BACKBONES, *timm.list_pretrained("*vit*")], most=3)
    raise DafuseError(f"no backbone is called {tag}{hint}")

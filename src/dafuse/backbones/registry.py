"""Networks by name: those inside the package, the named choices, and others used in the docs.

A backbone is named by its exact timm tag, never by a bare architecture name, because the same bare
name means different weights in different timm versions. `--backbone small` and the like stand for
one tag each. No torch here.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dafuse.data.preprocessing import NORMALISATIONS


class Cost(NamedTuple):
    """The size and speed of a network, as `dafuse list backbones` shows them."""

    pixels: int  # side of the square that it takes
    parameters: float  # millions
    download: int  # megabytes; 0: inside the package
    milliseconds: float  # per image on 2 cores by onnxruntime (dafuse bench backbones)


@dataclass(frozen=True)
class NamedWeights:
    """A set of weights, and what timm needs to build its network."""

    tag: str
    summary: str
    architecture: str  # timm's name for the network
    arguments: dict[str, Any] = field(default_factory=dict)  # for timm, to build the network
    preprocessing: dict[str, Any] = field(default_factory=dict)  # where it differs from timm's
    packaged: str = ""  # file name inside the package, if it is there
    sha256: tuple[str, ...] = ()  # known files with these weights; empty: none verified yet
    repository: str = ""  # on the hub; "" for timm/TAG
    url: str = ""  # of weights outside the hub
    cost: Cost | None = None  # for the backbones named here

    @property
    def hub(self) -> str:
        return self.repository or f"timm/{self.tag}"


COMPACT = "dafuse_compact_patch16_128.v2"
COMPACT_V1 = "dafuse_compact_patch8_64.v1"  # kept for models taught with it
SMALL = "vit_small_patch14_reg4_dinov2.lvd142m"
BASE = "vit_base_patch14_reg4_dinov2.lvd142m"
LARGE = "vit_large_patch14_reg4_dinov2.lvd142m"
# each network is better than the one before, and slower (docs/backbones.md gives the reasons)
CHOICES = {"embedded": COMPACT, "small": SMALL, "base": BASE, "large": LARGE}
PAPERS_RESIZE = {"resize": 256}  # as in the field's papers, for 224 pixels; timm's is 248


def tag_named(name: str) -> str:
    """Return the exact tag of a named choice; return any other name unchanged."""
    return CHOICES.get(name, name)


def is_packaged(tag: str, sha256: str | None = None) -> bool:
    """Tell whether the package has this tag's network and, given a hash, these weights."""
    known = BACKBONES.get(tag)
    return bool(known and known.packaged and sha256 in (None, *known.sha256))


def next_better(tag: str) -> str:
    """Return the named choice after this tag's; "" after the last, and for other tags."""
    names, tags = list(CHOICES), [COMPACT_V1, *CHOICES.values()]
    place = tags.index(tag) if tag in tags else len(names)
    return names[place] if place < len(names) else ""


def _compact(
    tag: str,
    summary: str,
    pixels: int,
    patch: int,
    sha256: str,
    parameters: float,
    milliseconds: float,
) -> NamedWeights:
    """Describe a network inside the package."""
    mean, std = NORMALISATIONS["imagenet"]
    return NamedWeights(
        tag,
        summary,
        "vit_tiny_patch16_224",
        {"img_size": pixels, "patch_size": patch},
        {
            "input_size": (3, pixels, pixels),
            "mean": mean,
            "std": std,
            "resize": round(pixels * 256 / 224),
        },
        packaged=tag.rpartition(".")[0] + ".safetensors",
        sha256=(sha256,),
        cost=Cost(pixels, parameters, 0, milliseconds),
    )


def _dinov2(tag: str, summary: str, cost: Cost) -> NamedWeights:
    """Describe a DINOv2 network with registers, at 224 pixels as in its paper's tests.

    timm's own 518 pixels would take more than five times as long.
    """
    architecture = tag.partition(".")[0]
    looks = {"input_size": (3, 224, 224), **PAPERS_RESIZE}
    return NamedWeights(tag, summary, architecture, {"img_size": 224}, looks, cost=cost)


BACKBONES = {
    b.tag: b
    for b in (
        _compact(
            COMPACT,
            "inside the package: distilled from DeiT-Tiny",
            pixels=128,
            patch=16,
            sha256="3d97ed90297595ae084624416bac20564a4d5f91575743ac9448b703c8b6244c",
            parameters=5.5,
            milliseconds=3.3,
        ),
        _dinov2(SMALL, "DINOv2 with registers, ViT-S/14", Cost(224, 21.6, 88, 35)),
        _dinov2(BASE, "DINOv2 with registers, ViT-B/14", Cost(224, 85.7, 346, 117)),
        _dinov2(LARGE, "DINOv2 with registers, ViT-L/14", Cost(224, 303.2, 1217, 394)),
        _compact(
            COMPACT_V1,
            "inside the package, for models that were taught with it",
            pixels=64,
            patch=8,
            sha256="2156682238805349eda52df4c8e0b9fce534b19f4a9e47b4d8c3271086c6a5b8",
            parameters=5.4,
            milliseconds=3.3,
        ),
        NamedWeights(
            "deit_tiny_patch16_224.fb_in1k",
            "DeiT-Tiny, ImageNet-1k",
            "deit_tiny_patch16_224",
            preprocessing=PAPERS_RESIZE,
            sha256=("0af164d9dc507fd8d9e16b38fe09661fe68beabbbcfed644ff007bfc7bb032c6",),
            cost=Cost(224, 5.5, 23, 9.2),
        ),
        NamedWeights(
            "vit_base_patch16_224.augreg_in21k",
            "the DAF paper's ViT-B/16-IN21K",
            "vit_base_patch16_224",
            preprocessing=PAPERS_RESIZE,
            cost=Cost(224, 85.8, 343, 86),
        ),
        NamedWeights(
            "vit_base_patch16_224.augreg_in21k_ft_in1k",
            "the DAF paper's ViT-B/16-IN1K (21k weights fine-tuned on 1k)",
            "vit_base_patch16_224",
            preprocessing=PAPERS_RESIZE,
            cost=Cost(224, 85.8, 343, 86),
        ),
    )
}

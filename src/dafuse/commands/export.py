"""`dafuse export` and `dafuse backbone export`: a model, or a network alone, as one file."""

from pathlib import Path
from typing import Literal

from dafuse.commands.options import Model, Weights
from dafuse.product.folder import ModelFolder
from dafuse.wording import counted


def export(model: Model, file: str, /, *, int8: bool = False, weights: Weights = None) -> None:
    """Write a model as one file, with which dafuse predict answers as with the model.

    It takes pixels and gives probabilities; class names and how images must be cut are in its
    properties.

    Args:
        file: its name ends in .onnx
        int8: weights of one byte instead of four: smaller, faster, a little less exact
    """
    out = Path(file).expanduser()
    ModelFolder(model).require()

    from dafuse.product.classifier import Classifier
    from dafuse.product.export import require_exportable

    require_exportable(out)
    exported = Classifier.open(model, weights=weights, device="cpu").export(out, int8)
    card, difference = exported.card, exported.difference
    size = card.preprocessing.size
    print(
        f"{out}: {counted(len(card.classes), 'class', 'classes')}, {card.weights}, "
        f"{out.stat().st_size / 1e6:.1f} MB, "
        f"images of {size} x {size} pixels"
    )
    print(
        f"compared with the model on {difference.images} made-up images: the same answer for "
        f"{difference.same}; probabilities differ by up to {difference.largest:.2g}, "
        f"by {difference.mean:.2g} on average"
    )


def backbone(
    export: Literal["export"],
    tag: str,
    file: str,
    /,
    *,
    weights: str | None = None,
    weights_sha256: str | None = None,
) -> None:
    """Write a network as one .onnx file, so that teaching with it needs no torch.

    Features at all depths, how images must be cut, tag and hash are inside. Teach with it by
    dafuse learn MODEL SOURCE --backbone FILE. The export itself needs dafuse[torch].

    Args:
        export: the word export
        tag: embedded, small, base, large, or an exact tag of timm (dafuse list backbones)
        file: its name ends in .onnx
        weights: a local .safetensors file with its weights
        weights_sha256: what that file's SHA-256 must be
    """
    from dafuse.backbones.graph import export_backbone, require_exportable
    from dafuse.backbones.load import build_backbone, with_weights
    from dafuse.engine.display import TerminalProgress

    out = Path(file).expanduser()
    with TerminalProgress() as progress:
        network = build_backbone(tag)
        require_exportable(network, out)
        with_weights(network, weights, weights_sha256, progress)
        with progress.bar("exporting", 0):
            difference = export_backbone(network, out)
    looks = network.preprocessing
    print(
        f"{out}: {network.tag}, {out.stat().st_size / 1e6:.1f} MB, images of {looks.size} x "
        f"{looks.size} pixels, {network.width_at('moments')} features for lift"
    )
    print(f"compared with torch on made-up images: features differ by up to {difference:.1g}")
    print(f"teach with it, without torch: dafuse learn MODEL SOURCE --backbone {out}")

"""What the commands share that load a model's network: options, and what they open."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier
    from dafuse.product.runtime import ExportedModel


def add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", help="a local .safetensors file with the backbone's weights")
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda", "mps"),
        help="where it runs; auto takes a GPU if there is one",
    )


def is_exported(model: str) -> bool:
    """Whether this names an .onnx file of `dafuse export`, and not a model's folder."""
    return model.lower().endswith(".onnx") and not Path(model).is_dir()


def open_model(options: argparse.Namespace) -> "Classifier | ExportedModel":
    """Torch is imported only for a model's folder."""
    if options.model.lower().endswith(".pt2"):
        raise DafuseError("a .pt2 file is for torch.export.load: name the model, or an .onnx file")
    if not is_exported(options.model):
        from dafuse.product.classifier import Classifier

        return Classifier.open(options.model, weights=options.weights, device=options.device)
    if options.weights or options.device not in ("auto", "cpu"):
        raise DafuseError("an .onnx file has its weights inside and runs on the cpu")
    from dafuse.product.runtime import ExportedModel

    return ExportedModel(options.model)


def open_or_create(options: argparse.Namespace) -> "Classifier":
    """The model in the folder, or a new one where there is none."""
    from dafuse.product.classifier import Classifier
    from dafuse.product.folder import ModelFolder

    network = {"weights": options.weights, "device": options.device}
    given = {name: getattr(options, name, None) for name in ("backbone", "seed")}
    if not ModelFolder(options.model).exists():
        chosen = {name: value for name, value in given.items() if value is not None}
        return Classifier.create(options.model, **network, **chosen)
    classifier = Classifier.open(options.model, **network)
    made_with = {"backbone": classifier.version.backbone.tag, "seed": classifier.version.seed}
    for name, value in made_with.items():
        if given[name] not in (None, value):
            raise DafuseError(
                f"{options.model} was made with the {name} {value}, which cannot be changed: "
                f"leave out --{name}, or make another model"
            )
    return classifier

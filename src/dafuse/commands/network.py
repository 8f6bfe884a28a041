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
    if not is_exported(options.model):
        from dafuse.product.classifier import Classifier

        return Classifier.open(options.model, weights=options.weights, device=options.device)
    if options.weights or options.device not in ("auto", "cpu"):
        raise DafuseError("an .onnx file has its weights inside and runs on the cpu")
    from dafuse.product.runtime import ExportedModel

    return ExportedModel(options.model)

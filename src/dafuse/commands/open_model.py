"""Options of the commands that load a model's network, and what these open."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafuse.backbones.registry import tag_named
from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier
    from dafuse.product.predictor import ExportedModel


BACKBONE = (
    "embedded (the default: inside the package), small, base or large (dafuse list backbones); an "
    "exact tag of timm; or an .onnx file of dafuse backbone export, which needs no torch"
)
WEIGHTS = "a local file with the backbone's weights: .safetensors, or .onnx of an exported backbone"


def add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", help=WEIGHTS)
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda", "mps"),
        help="where it runs; auto takes a GPU if there is one that can be used",
    )
    parser.add_argument("--threads", type=int, help="how many (default: one for each processor)")


def is_exported(model: str) -> bool:
    """Whether this names an exported .onnx file, and not a model's folder."""
    return model.lower().endswith(".onnx") and not Path(model).is_dir()


def open_model(options: argparse.Namespace) -> "Classifier | ExportedModel":
    """A model's folder, or an exported file."""
    if options.model.lower().endswith(".pt2"):
        raise DafuseError("a .pt2 file is for torch.export.load: name the model, or an .onnx file")
    if not is_exported(options.model):
        return open_folder(options)
    if options.weights or options.device not in ("auto", "cpu"):
        raise DafuseError("an .onnx file has its weights inside and runs on the cpu")
    from dafuse.product.predictor import ExportedModel

    return ExportedModel(options.model, options.threads)


def open_folder(options: argparse.Namespace) -> "Classifier":
    """The model in a folder."""
    from dafuse.product.classifier import Classifier

    return Classifier.open(options.model, **_network(options))


def open_or_create(options: argparse.Namespace) -> "Classifier":
    """The model in the folder, or a new one where there is none."""
    from dafuse.product.classifier import Classifier
    from dafuse.product.folder import ModelFolder
    from dafuse.taught.contract import refuse_unknown
    from dafuse.taught.table import DEFAULT, TUNED, find_taught

    network, settings = _network(options), _settings(options)
    given = {name: getattr(options, name, None) for name in ("backbone", "seed", "method")}
    if not ModelFolder(options.model).exists():
        chosen = {name: value for name, value in given.items() if value is not None}
        network["weights_sha256"] = getattr(options, "weights_sha256", None)
        # checked here, so that no setting is taken for another argument of `create`
        find_taught(given["method"] or DEFAULT, settings).defaults(settings)
        return Classifier.create(options.model, **network, **chosen, **settings)
    if asked := given["backbone"]:
        if is_exported(asked):  # where the file of its network is now; opening it checks which
            if network["weights"]:
                raise DafuseError(f"{asked} has its weights inside: leave out --weights")
            network["weights"], given["backbone"] = asked, None
        else:
            given["backbone"] = tag_named(asked)
    classifier = Classifier.open(options.model, **network)
    version = classifier.version
    made_with = {
        "backbone": version.backbone.tag,
        "seed": version.seed,
        "method": version.method,
    }
    for name, value in made_with.items():
        if given[name] not in (None, value):
            raise DafuseError(
                f"{options.model} was made with the {name} {value}, which cannot be changed: "
                f"leave out --{name}, or make another model"
            )
    defaults = find_taught(version.method, version.settings).defaults({})
    made = {**defaults, **version.settings}  # an older model may lack some
    if version.method in TUNED:
        made.setdefault("tune", "none")
    refuse_unknown(version.method, settings, list(made))
    for name, wanted in settings.items():
        if (value := made[name]) != wanted:
            raise DafuseError(
                f"{options.model} was made with {name}={value}, which cannot be changed to "
                f"{wanted}: leave it out, or make another model"
            )
    return classifier


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of a method, as --set and --tune give them."""
    found: dict[str, Any] = {}
    for text in getattr(options, "set", []):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise DafuseError(f"--set takes NAME=VALUE, such as rank=8, not {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:  # a word
            found[name] = value
    if getattr(options, "tune", None):
        found["tune"] = options.tune
    return found


def _network(options: argparse.Namespace) -> dict[str, Any]:
    """What the network is opened with."""
    if options.threads is not None and options.threads < 1:
        raise DafuseError(f"--threads must be at least 1, not {options.threads}")
    return {"weights": options.weights, "device": options.device, "threads": options.threads}

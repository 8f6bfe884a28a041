"""Options of the commands that open a model, and the functions that open it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dafuse.backbones.registry import tag_named
from dafuse.commands.options import Device, Threads, Weights
from dafuse.errors import DafuseError
from dafuse.taught.table import DEFAULT, LIGHT, METHODS, TUNED, find_taught

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier
    from dafuse.product.predictor import ExportedModel

BackboneName = Annotated[
    str | None,
    Parameter(
        help="of a new model: embedded (the default: inside the package), small, base or large "
        "(dafuse list backbones); an exact tag of timm; or an .onnx file of dafuse backbone "
        "export, which needs no torch"
    ),
]

MethodName = Annotated[
    str | None,
    Parameter(
        help=f"of a new model ({DEFAULT} if left out): "
        + "; ".join(f"{name}: {one.what}" for name, one in METHODS.items())
        + f"; all but {' and '.join(LIGHT)} need dafuse[torch]"
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class NetworkOptions:
    """Options for opening a model's network."""

    weights: Weights = None
    device: Device = "auto"
    threads: Threads = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise DafuseError(f"--threads must be at least 1, not {self.threads}")


AS_USUAL = NetworkOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class LessonNetwork(NetworkOptions):
    """Options of how the network of a model is opened that several devices may teach."""

    devices: Annotated[
        int,
        Parameter(
            help="for a lesson that trains: how many devices of this machine share the work, a "
            "process each; on a CPU so many processes"
        ),
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices < 1:
            raise DafuseError(f"--devices must be at least 1, not {self.devices}")


ON_ONE_DEVICE = LessonNetwork()


def is_exported(model: str) -> bool:
    """Tell whether this names an exported .onnx file, and not a model's folder."""
    return model.lower().endswith(".onnx") and not Path(model).is_dir()


def open_model(model: str, network: NetworkOptions) -> "Classifier | ExportedModel":
    """Open a model's folder, or an exported file."""
    if model.lower().endswith(".pt2"):
        raise DafuseError("a .pt2 file is for torch.export.load: name the model, or an .onnx file")
    return open_exported(model, network) if is_exported(model) else open_folder(model, network)


def open_exported(model: str, network: NetworkOptions) -> "ExportedModel":
    """Open an exported file."""
    if network.weights or network.device not in ("auto", "cpu"):
        raise DafuseError("an .onnx file has its weights inside and runs on the cpu")
    from dafuse.product.predictor import ExportedModel

    return ExportedModel(model, network.threads)


def open_folder(model: str, network: NetworkOptions) -> "Classifier":
    """Open the model in a folder."""
    from dafuse.product.classifier import Classifier

    return Classifier.open(model, **asdict(network))


def open_or_create(
    model: str,
    network: NetworkOptions,
    settings: dict[str, Any] | None = None,
    weights_sha256: str | None = None,
    **new: Any,
) -> "Classifier":
    """Open the model in the folder, or make a new one where there is none.

    ``new`` may be backbone, method and seed of a new model; None stands for the default.
    """
    from dafuse.product.classifier import Classifier
    from dafuse.product.folder import ModelFolder
    from dafuse.taught.contract import refuse_unknown

    settings, opening = settings or {}, asdict(network)
    given = {name: value for name, value in new.items() if value is not None}
    if not ModelFolder(model).exists():
        # checked here, so that no setting is taken for another argument of `create`
        find_taught(given.get("method", DEFAULT), settings).defaults(settings)
        return Classifier.create(
            model, weights_sha256=weights_sha256, **opening, **given, **settings
        )
    if asked := given.get("backbone"):
        if is_exported(asked):  # where the file of its network is now; opening it checks which
            if network.weights:
                raise DafuseError(f"{asked} has its weights inside: leave out --weights")
            opening["weights"] = given.pop("backbone")
        else:
            given["backbone"] = tag_named(asked)
    classifier = Classifier.open(model, **opening)
    version = classifier.version
    made_with = {
        "backbone": version.backbone.tag,
        "seed": version.seed,
        "method": version.method,
    }
    for name, value in made_with.items():
        if given.get(name, value) != value:
            raise DafuseError(
                f"{model} was made with the {name} {value}, which cannot be changed: "
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
                f"{model} was made with {name}={value}, which cannot be changed to "
                f"{wanted}: leave it out, or make another model"
            )
    return classifier

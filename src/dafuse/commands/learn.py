"""`dafuse learn MODEL FOLDER`: make a model, or teach it more."""

import argparse
from typing import TYPE_CHECKING

from dafuse.commands.network import add_network_options
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.vit.weights import COMPACT

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dafuse learn",
        description="Learn the classes of a folder: new ones beside those the model knows, and "
        "more about known ones. The images are not kept. Ctrl-C leaves the model as it was.",
    )
    parser.add_argument("model", help="the model's folder; made if it is not there")
    parser.add_argument("folder", help="a folder with a folder of images for each class")
    parser.add_argument("--backbone", help=f"of a new model: exact timm tag (default: {COMPACT})")
    parser.add_argument("--seed", type=int, help="of a new model: everything random (1993)")
    parser.add_argument(
        "--holdout",
        type=float,
        default=0.1,
        help="share of each class of 5 images or more that is kept back to test with (0.1)",
    )
    parser.add_argument("--epochs", type=int, help="passes over the images (20)")
    parser.add_argument("--lr", type=float, help="learning rate (0.01)")
    parser.add_argument(
        "--no-flip",
        action="store_true",
        help="do not also train on mirrored images: for letters, arrows and the like",
    )
    add_network_options(parser)
    options = parser.parse_args(arguments)

    from dafuse.engine.display import TerminalProgress

    with TerminalProgress() as progress:
        report = _open(options).learn(
            options.folder,
            holdout=options.holdout,
            epochs=options.epochs,
            lr=options.lr,
            flip=not options.no_flip,
            progress=progress,
        )
    print("\n".join(report.lines()))


def _open(options: argparse.Namespace) -> "Classifier":
    """The model, or a new one where there is none. What is wrong with the folder is said first."""
    from dafuse.product.classifier import Classifier
    from dafuse.product.pictures import lesson_images

    lesson_images(options.folder, None)
    if not ModelFolder(options.model).exists():
        return Classifier.create(
            options.model,
            options.backbone or COMPACT,
            weights=options.weights,
            device=options.device,
            seed=1993 if options.seed is None else options.seed,
        )
    classifier = Classifier.open(options.model, weights=options.weights, device=options.device)
    made_with = {"backbone": classifier.version.backbone.tag, "seed": classifier.version.seed}
    for name, value in made_with.items():
        if getattr(options, name) not in (None, value):
            raise DafuseError(
                f"{options.model} was made with the {name} {value}, which cannot be changed: "
                f"leave out --{name}, or make another model"
            )
    return classifier

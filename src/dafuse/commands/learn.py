"""`dafuse learn MODEL SOURCE`: make a model, or teach it more."""

import argparse
from typing import TYPE_CHECKING

from dafuse.backbones.registry import next_better
from dafuse.commands.open_model import BACKBONE, add_network_options, open_or_create
from dafuse.commands.parsing import SOURCE, Parser
from dafuse.taught.table import DEFAULT, LIGHT, METHODS
from dafuse.wording import shown_lines

if TYPE_CHECKING:
    from dafuse.product.version import Version


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse learn",
        description="Learn the classes of a folder: new ones beside those the model knows, and "
        "more about known ones. Images that were taught before are skipped, so that one folder may "
        "grow. No image is kept. Ctrl-C leaves the model as it was.",
    )
    parser.add_argument("model", help="the model's folder; made if it is not there")
    parser.add_argument("source", help=SOURCE)
    parser.add_argument("--backbone", help=f"of a new model: {BACKBONE}")
    parser.add_argument(
        "--method",
        metavar="NAME",
        help=f"of a new model (default: {DEFAULT}): "
        + "; ".join(f"{name}: {one.what}" for name, one in METHODS.items())
        + f"; all but {' and '.join(LIGHT)} need dafuse[torch]",
    )
    parser.add_argument(
        "--tune",
        action="store_const",
        const="first",
        help="of a new model: fit the network to its images by an adapter, trained in the first "
        "lesson (in each of the first five, for lift: --set tune=each); for lift, layup and anacp; "
        "needs dafuse[torch]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of a new model: a setting of its method, such as rank=8; may be given several times",
    )
    parser.add_argument(
        "--no-recognise",
        action="store_true",
        help="also learn images that were taught before, and keep no hashes of this lesson's "
        "images to recognise them by",
    )
    parser.add_argument(
        "--weights-sha256",
        "--weights_sha256",
        help="of a new model: the SHA-256 of its weights; lets in a file that is not known to hold "
        "them",
    )
    parser.add_argument("--seed", type=int, help="of a new model: everything random (1993)")
    training = parser.add_argument_group("for a method that trains")
    training.add_argument(
        "--holdout",
        type=float,
        help="share of each class of 5 images or more that is kept back to test with (0.1)",
    )
    training.add_argument("--epochs", type=int, help="passes over the images (20)")
    training.add_argument("--lr", type=float, help="learning rate (0.01)")
    training.add_argument(
        "--flip",
        action=argparse.BooleanOptionalAction,
        help="also train on mirrored images, or not: for letters, arrows and the like (as in the "
        "model's last lesson; in a first one mirrored)",
    )
    add_network_options(parser)
    options = parser.parse_args(arguments)

    from dafuse.commands.changing import changing
    from dafuse.data.own_data import lesson_images
    from dafuse.engine.display import TerminalProgress

    with changing(options.model):
        with TerminalProgress() as progress:
            lesson = lesson_images(options.source, None)  # what is wrong with it is said first
            classifier = open_or_create(options)
            if not classifier.version.number:
                with classifier.folder.changing(progress):  # else it may never become a model
                    progress.say(_introduced(options.model, classifier.version))
            report = classifier.learn(
                lesson,
                recognise=not options.no_recognise,
                holdout=options.holdout,
                epochs=options.epochs,
                lr=options.lr,
                flip=options.flip,
                progress=progress,
            )
        print(shown_lines(report.lines()))


def _introduced(model: str, version: "Version") -> str:
    """Which network a new model looks at images with, and what would be better."""
    network = version.backbone
    line = (
        f"{model} is a new model: method {version.method}, network {network.tag}, which looks at "
        f"images of {network.size} x {network.size} pixels"
    )
    if better := next_better(network.tag):
        line += f"; the next better one is --backbone {better} (dafuse list backbones)"
    return line

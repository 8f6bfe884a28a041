"""`dafuse learn MODEL FOLDER`: make a model, or teach it more."""

import argparse

from dafuse.commands.network import add_network_options, open_or_create
from dafuse.vit.weights import COMPACT


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
        "--flip",
        action=argparse.BooleanOptionalAction,
        help="also train on mirrored images, or not: for letters, arrows and the like (as in the "
        "model's last lesson; in a first one mirrored)",
    )
    add_network_options(parser)
    options = parser.parse_args(arguments)

    from dafuse.commands.changing import changing
    from dafuse.engine.display import TerminalProgress
    from dafuse.product.pictures import lesson_images

    with changing(options.model):
        with TerminalProgress() as progress:
            lesson_images(options.folder, None)  # what is wrong with the folder is said first
            report = open_or_create(options).learn(
                options.folder,
                holdout=options.holdout,
                epochs=options.epochs,
                lr=options.lr,
                flip=options.flip,
                progress=progress,
            )
        print("\n".join(report.lines()))

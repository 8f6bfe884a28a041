"""`dafuse evaluate MODEL FOLDER`: accuracy, confused classes, calibration."""

import argparse

from dafuse.commands.network import add_network_options


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dafuse evaluate",
        description="Test a model on images that it was not taught with: accuracy of each class, "
        "the classes it confuses, how far its probabilities are off, what it answers unknown.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("folder", help="a folder with a folder of images for each class")
    add_network_options(parser)
    options = parser.parse_args(arguments)

    from dafuse.engine.display import TerminalProgress
    from dafuse.product.classifier import Classifier

    with TerminalProgress() as progress:
        classifier = Classifier.open(options.model, weights=options.weights, device=options.device)
        evaluation = classifier.evaluate(options.folder, progress)
    print("\n".join(evaluation.lines()))

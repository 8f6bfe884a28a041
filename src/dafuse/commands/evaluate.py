"""`dafuse evaluate MODEL FOLDER`: accuracy, confused classes, calibration."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dafuse.commands.network import add_network_options, open_model
from dafuse.progress import Progress


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dafuse evaluate",
        description="Test a model on images that it was not taught with: accuracy of each class, "
        "the classes it confuses, how far its probabilities are off, what it answers unknown.",
    )
    parser.add_argument("model", help="the model's folder, or an .onnx file of dafuse export")
    parser.add_argument("folder", help="a folder with a folder of images for each class")
    add_network_options(parser)
    options = parser.parse_args(arguments)

    with _showing_progress() as progress:
        evaluation = open_model(options).evaluate(options.folder, progress)
    print("\n".join(evaluation.lines()))


@contextmanager
def _showing_progress() -> Iterator[Progress]:
    """Bars where rich is installed, without which exported files must do; else lines alone."""
    try:
        from dafuse.engine.display import TerminalProgress
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        yield _Lines()
    else:
        with TerminalProgress() as progress:
            yield progress


class _Lines(Progress):
    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

"""`dafuse forget MODEL CLASS... [--for-good]`."""

import argparse

from dafuse.commands.changing import changing
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import ModelFolder
from dafuse.product.steps import forget


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dafuse forget",
        description="Remove classes and their statistics. The adapter and the other classes stay "
        "as they were learned beside them.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("classes", nargs="+", metavar="class", help="names; see dafuse info MODEL")
    parser.add_argument(
        "--for-good",
        action="store_true",
        help="also remove every older version that holds them, so that undo cannot bring them back",
    )
    options = parser.parse_args(arguments)
    folder = ModelFolder(options.model)
    with changing(options.model):
        forgotten = forget(folder, options.classes, options.for_good, TerminalProgress())
    names = ", ".join(forgotten.names)
    if not forgotten.for_good:
        print(f"forgot {names}; dafuse undo brings back what was forgotten, --for-good would not")
        return
    versions = ", ".join(map(str, forgotten.versions))
    print(f"forgot {names} for good: their statistics and the versions {versions} are deleted")
    print("the adapter stays as it was trained, with their images among others")

"""How the commands read options: a mistake is one line, with what was likely meant."""

import argparse
from collections.abc import Iterable
from typing import NoReturn

from dafuse.errors import DafuseError, did_you_mean

SOURCE = (
    "a folder with a folder of images for each class; or a .csv or .parquet with the columns path "
    "and label; or an .npz of train_images and train_labels "
    "(perhaps also test_images, test_labels and, where labels are numbers, class_names)"
)


class Parser(argparse.ArgumentParser):
    """The parser of argparse, whose errors are one line without the usage."""

    def error(self, message: str) -> NoReturn:
        raise mistyped(message, self._option_string_actions, f"{self.prog} --help")


def mistyped(message: str, options: Iterable[str], help_command: str) -> DafuseError:
    """The error of a parser, with the option that was likely meant where one is unknown."""
    unknown = "unrecognized arguments" in message.lower()
    typed = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    hint = did_you_mean(typed[0], options) if unknown and typed else ""
    return DafuseError(f"{message}; see {help_command}{hint}")

"""How the commands read options: a mistake is one line, with what was likely meant."""

import argparse
import re
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from dafuse.errors import DafuseError, did_you_mean

SOURCE = (
    "a folder with a folder of images for each class; or a .csv or .parquet with the columns path "
    "and label; or an .npz of train_images and train_labels "
    "(perhaps also test_images, test_labels and, where labels are numbers, class_names)"
)


class Parser(argparse.ArgumentParser):
    """The parser of argparse, whose errors are one line without the usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.typed = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        message += self._after_dashes(message)
        raise mistyped(message, self._option_string_actions, f"{self.prog} --help")

    def _after_dashes(self, message: str) -> str:
        """How to give a name that begins with a dash, where that may be what is wrong."""
        dashed = [word for word in self.typed if re.match("-[^-]", word)]
        names = [word for word in dashed if word not in self._option_string_actions]
        if not names or "--" in self.typed or not re.search("required|unrecognized", message):
            return ""
        return f"; a name that begins with a dash comes after two of them: -- {names[0]}"


def mistyped(message: str, options: Iterable[str], help_command: str) -> DafuseError:
    """The error of a parser, with the option that was likely meant where one is unknown."""
    unknown = "unrecognized arguments" in message.lower()
    typed = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    hint = did_you_mean(typed[0], options) if unknown and typed else ""
    return DafuseError(f"{message}; see {help_command}{hint}")

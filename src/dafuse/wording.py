"""Small parts of messages."""

import json
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of characters that show nothing but act
JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))  # Persian and Indic words, and emoji, use them


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 image", "2,000 images"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or what kind of error it is if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(text: object, escape: Callable[[str], str] | None = None) -> str:
    """Return one line that spells out what a terminal would obey: ``\\x1b`` for an escape.

    File names and the contents of a model's files may hold anything.
    """
    escape = escape or (lambda one: one.encode("unicode_escape").decode())
    hidden = (one for one in str(text) if unicodedata.category(one) in HIDDEN)
    spelt = {ord(one): escape(one) for one in hidden if ord(one) not in JOINERS}
    return str(text).translate(spelt)


def shown_lines(lines: Iterable[str]) -> str:
    return "\n".join(map(shown, lines))


def shown_json(value: Any) -> str:
    """Return the value as indented JSON, in which nothing is left that a terminal would obey."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    lines = text.split("\n")  # JSON has no line break inside a text
    return "\n".join(shown(line, lambda one: json.dumps(one)[1:-1]) for line in lines)

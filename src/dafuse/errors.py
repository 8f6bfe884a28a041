"""Messages to a person who made a mistake: a sentence says what is wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class DafuseError(Exception):
    """Bad input or a missing thing. The command line prints it as one line and exits with 2."""


def did_you_mean(given: str, known: Iterable[str], most: int = 1) -> str:
    """Return the known names like the one given, as the end of a sentence; "" for none."""
    by_letters: dict[str, str] = {}
    for name in known:
        by_letters.setdefault(_letters(name), name)
    near = [by_letters[found] for found in get_close_matches(_letters(given), by_letters, most)]
    return f"; did you mean {', '.join(near)}?" if near else ""


def _letters(name: str) -> str:
    """Return a name as it is compared: neither case nor the kind of dash counts."""
    return name.casefold().replace("_", "-")

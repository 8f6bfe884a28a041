"""Names that classes may have: in any data, and more strictly where a model is taught them."""

import unicodedata
from collections.abc import Iterable

from dafuse.errors import DafuseError
from dafuse.wording import JOINERS

LONGEST_NAME = 80


def composed(name: str) -> str:
    """Return one spelling of what looks the same: an accented e is one character, not two."""
    return unicodedata.normalize("NFC", name)


def same_name(name: str) -> str:
    """Return a key that is equal for names taken for one, whatever their case and spelling."""
    return composed(composed(name).casefold())


def check_class_names(names: Iterable[str], where: object) -> None:
    """Refuse names that a case-insensitive file system (or a hurried reader) takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise DafuseError(
                f"the class names {other!r} and {name!r} in {where} differ only in case: "
                "rename one of them, or give both the same name"
            )


def taught_name(name: str) -> str:
    """Return the name as a model keeps it; refuse one that cannot be a class of a model."""
    name = composed(name)
    shown = name.translate(JOINERS)
    if not shown.strip():
        wrong = "a class name must not be empty"
    elif name != name.strip():
        wrong = "a class name must not begin or end with a space"
    elif len(name) > LONGEST_NAME:
        wrong = f"a class name has at most {LONGEST_NAME} characters"
    elif not shown.isprintable():
        wrong = "a class name is on one line, of characters that can be shown"
    elif "/" in name or "\\" in name:
        wrong = "a class name has no slashes"
    elif shown.casefold() == "unknown":
        wrong = "that is the answer for images unlike every class: choose another name"
    else:
        return name
    called = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    raise DafuseError(f"no class can be called {called!r}: {wrong}")


def require_taught_names(names: Iterable[str]) -> None:
    """Refuse, by `ValueError`, names from a file that could not have been taught."""
    for name in names:
        try:
            taught_name(name)
        except DafuseError as error:
            raise ValueError(error) from None

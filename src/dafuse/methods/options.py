"""Checks of a method's options that hold wherever they come from: command line, recipe, Python."""

import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dafuse.errors import DafuseError


def check_choices(method: Any) -> None:
    """Every field that is a choice holds one of its choices."""
    hints = get_type_hints(type(method))
    for field in fields(method):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        value = getattr(method, field.name)
        if choices and value not in choices:
            named = ", ".join(map(str, choices))
            raise DafuseError(f"method.{field.name} must be one of {named}, not {value!r}")


def check_ranges(method: Any, **ranges: tuple[float, float]) -> None:
    """Every number named lies between its least and its greatest value."""
    for name, (least, most) in ranges.items():
        value = getattr(method, name)
        if not least <= value <= most:
            upper = "" if math.isinf(most) else f" and at most {most:g}"
            raise DafuseError(f"method.{name} must be at least {least:g}{upper}, not {value!r}")


def check_finite(tensor: Any, what: str) -> None:
    """Training that went wrong shows here at the latest."""
    if not tensor.isfinite().all():
        raise DafuseError(f"{what} are not finite; try a smaller learning rate")

"""A method's options: ranges that stand on the fields, and the check of values. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dafuse.errors import DafuseError


@dataclass(frozen=True)
class Range:
    """The min and max of a number, beside its type: ``epochs: Annotated[int, Range(1)] = 20``."""

    low: float
    high: float = math.inf

    def __repr__(self) -> str:
        return f"at least {self.low:.10g}" + (
            "" if math.isinf(self.high) else f" and at most {self.high:.10g}"
        )

    def require(self, name: str, value: float) -> None:
        if not self.low <= value <= self.high:
            raise DafuseError(f"{name} must be {self}, not {value!r}")


Options = Mapping[str, Any]  # values by the names of fields
PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
NonNegativeFloat = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    type(None): "null",
}


def require_valid(owner: type, options: Options, prefix: str = "") -> None:
    """Refuse values of another type than their field's, outside its range, not of its choices."""
    hints = get_type_hints(owner, include_extras=True)
    for option, value in options.items():
        name, hint = f"{prefix}{option}", hints[option]
        ranges: list[Range] = []
        if get_origin(hint) is Annotated:
            hint, *beside = get_args(hint)
            ranges = [one for one in beside if isinstance(one, Range)]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                choices = ", ".join(map(str, get_args(hint)))
                raise DafuseError(f"{name} must be one of {choices}, not {value!r}")
            continue
        kinds = get_args(hint) or (hint,)
        allowed = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            named = " or ".join(WORDS[kind] for kind in kinds)
            raise DafuseError(f"{name} must be {named}, not {value!r}")
        for one in ranges:
            if value is not None:
                one.require(name, value)

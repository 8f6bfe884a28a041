"""Shapes of JSON from a file, checked before anything is computed from it.

TASK = Keys({"images": Each(COUNT)}, {"loss": [NUMBER]})   # required and optional keys
require_shape(content, TASK)     # ValueError: "images.train is not a whole number of at least 0"
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

LARGEST = 2**63  # no whole number of ours is as large
DEEPEST_VALUE = 50  # levels of what is not described


@dataclass(frozen=True)
class Kind:
    """One value, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Keys:
    """A mapping with these keys; others may stand beside them."""

    required: Mapping[str, "Shape"] = field(default_factory=dict)
    optional: Mapping[str, "Shape"] = field(default_factory=dict)


@dataclass(frozen=True)
class Each:
    """A mapping from any words to values of one shape."""

    shape: "Shape"


@dataclass(frozen=True)
class Maybe:
    """Null, or this shape."""

    shape: "Shape"


Shape = Kind | Keys | Each | Maybe | list["Shape"]  # a list has one shape for all that it holds


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < LARGEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_shallow(value: Any, levels: int = DEEPEST_VALUE) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (
        levels > 0 and all(_is_shallow(inner, levels - 1) for inner in value)
    )


WORD = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number of at least 0", _is_count)
FROM_1 = Kind("a whole number from 1 on", lambda value: _is_count(value) and value >= 1)
NUMBER = Kind("a number", _is_number)
AMOUNT = Kind("a number from 0 to 2^63", lambda value: _is_number(value) and 0 <= value <= LARGEST)
ANYTHING = Kind("a value as runs write it", _is_shallow)


@dataclass(frozen=True)
class JsonRecord:
    """A record with a field for each key of JSON whose shape was checked."""

    @classmethod
    def parsed(cls, content: Mapping[str, Any]) -> Self:
        """Take what is known; what is missing or null has its default."""
        names = {each.name for each in fields(cls)}
        return cls(**{k: v for k, v in content.items() if k in names and v is not None})

    def as_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def require_shape(value: Any, shape: Shape, where: str = "") -> None:
    """Raise a ValueError that names the first part of another shape."""
    inside = f"{where}." if where else ""
    if isinstance(shape, Kind):
        if not shape.holds(value):
            raise ValueError(f"{where or 'it'} is not {shape.words}")
    elif isinstance(shape, Maybe):
        if value is not None:
            require_shape(value, shape.shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{where or 'it'} is not a list")
        if isinstance(shape[0], Kind) and all(map(shape[0].holds, value)):
            return  # long lists of numbers are not walked twice
        for number, inner in enumerate(value):
            require_shape(inner, shape[0], f"{where}[{number}]")
    elif not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} is not a mapping")
    elif isinstance(shape, Each):
        for key, inner in value.items():
            require_shape(inner, shape.shape, f"{inside}{key}")
    else:
        for key, one in shape.required.items():
            if key not in value:
                raise ValueError(f"{inside}{key} is missing")
            require_shape(value[key], one, f"{inside}{key}")
        for key, one in shape.optional.items():
            if key in value:
                require_shape(value[key], one, f"{inside}{key}")

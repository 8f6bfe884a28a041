"""Checks of a method's options, wherever they come from: command line, recipe, Python."""

import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dafuse.errors import DafuseError


def check_choices(method: Any) -> None:
    """Refuse values of choice fields that are not among the choices."""
    hints = get_type_hints(type(method))
    for field in fields(method):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        value = getattr(method, field.name)
        if choices and value not in choices:
            named = ", ".join(map(str, choices))
            raise DafuseError(f"method.{field.name} must be one of {named}, not {value!r}")


def check_types(method: type, options: dict[str, Any]) -> None:
    """Refuse options whose type is not that of the field; choices are checked elsewhere."""
    hints = get_type_hints(method)
    for name, value in options.items():
        hint = hints[name]
        if get_origin(hint) is Literal:
            continue
        allowed = get_args(hint) or (hint,)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            kinds = {bool: "true or false", str: "a word", type(None): "null"}
            named = dict.fromkeys(kinds.get(kind, "a number") for kind in allowed)
            raise DafuseError(f"method.{name} must be {' or '.join(named)}, not {value!r}")


# min and max of options, for every method that has them
RANGES = {
    **dict.fromkeys(("epochs", "first_epochs", "batch_size"), (1, math.inf)),
    **dict.fromkeys(("lr", "weight_decay", "align_epochs", "align_lr"), (0, math.inf)),
    **dict.fromkeys(("first_weight_decay", "backbone_rate"), (0, math.inf)),
    **dict.fromkeys(("momentum", "adapter_dropout", "gamma", "margin"), (0, 1)),
    **dict.fromkeys(("adapter_rank", "align_samples", "memory_rank"), (1, math.inf)),
    **dict.fromkeys(("exemplars_per_class", "prompt_length", "pool_size"), (1, math.inf)),
    **dict.fromkeys(("alpha", "orth", "head_width"), (0, math.inf)),
}


def check_ranges(method: Any, **more: tuple[float, float]) -> None:
    """Refuse numbers outside their range; null is allowed."""
    own = {field.name for field in fields(method)}
    known = {name: limits for name, limits in RANGES.items() if name in own}
    for name, (low, high) in {**known, **more}.items():
        value = getattr(method, name)
        if value is not None and not low <= value <= high:
            upper = "" if math.isinf(high) else f" and at most {high:g}"
            raise DafuseError(f"method.{name} must be at least {low:g}{upper}, not {value!r}")

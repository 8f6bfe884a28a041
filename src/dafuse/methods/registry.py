"""The methods by name. Adding one: its file, its line here, its recipe."""

from dataclasses import fields
from typing import Any

from dafuse.errors import DafuseError
from dafuse.methods.contract import Method
from dafuse.methods.daf import DAF, DAFPaper
from dafuse.methods.simplecil import SimpleCIL

METHODS: dict[str, type[Method]] = {cls.name: cls for cls in (DAF, DAFPaper, SimpleCIL)}


def find_method(name: str) -> type[Method]:
    if name not in METHODS:
        raise DafuseError(f"no method is called {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def with_defaults(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every option of the method: those given, and the defaults of the others."""
    defaults = {f.name: f.default for f in fields(find_method(name)) if f.name != "trainer"}
    if unknown := options.keys() - defaults.keys():
        raise DafuseError(
            f"the method {name} has no option {', '.join(sorted(unknown))}; "
            f"it has {', '.join(defaults) or 'none'}"
        )
    return defaults | options

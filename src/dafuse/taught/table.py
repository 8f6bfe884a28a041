"""The methods that people can teach, by name. Each is imported on first use."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from dafuse.errors import DafuseError, did_you_mean
from dafuse.taught import words
from dafuse.taught.words import Words

if TYPE_CHECKING:
    from dafuse.taught.contract import Teachable


class TaughtEntry(NamedTuple):
    module: str
    cls: str
    what: str
    words: Words
    needs_torch: bool = True
    solves_again: bool = False  # `load` can compute what predicts from the rest


DEFAULT = "lift"
METHODS = {
    "lift": TaughtEntry(
        "lift", "TaughtLift", "closed form on features of many blocks", words.LIFT, False, True
    ),
    "simplecil": TaughtEntry(
        "simplecil", "TaughtSimpleCIL", "class means as prototypes", words.SIMPLECIL, False, True
    ),
    "daf": TaughtEntry("daf", "TaughtDAF", "fused adapters, one trained in each lesson", words.DAF),
    "ranpac": TaughtEntry(
        "closed_forms",
        "TaughtRanPAC",
        "an adapter in the first lesson, then ridge regression",
        words.RANPAC,
    ),
    "layup": TaughtEntry(
        "closed_forms", "TaughtLayUP", "ridge regression on the last CLS tokens", words.LAYUP
    ),
    "klda": TaughtEntry("closed_forms", "TaughtKLDA", "LDA by a Gaussian kernel", words.KLDA),
    "anacp": TaughtEntry(
        "closed_forms", "TaughtAnaCP", "ridge regression onto spread class means", words.ANACP
    ),
}
LIGHT = [name for name, one in METHODS.items() if not one.needs_torch]
TUNED = {  # with tune=first or each
    "lift": TaughtEntry("closed_forms", "TunedLift", "the same with adapters", words.TUNED_LIFT)
}


def entry_of(name: str, settings: Mapping[str, Any] | None = None) -> TaughtEntry:
    """Return the entry of a method without importing it: with adapters if the settings say so."""
    if name not in METHODS:
        raise DafuseError(
            f"no method that can be taught is called {name!r}; there are {', '.join(METHODS)}"
            + did_you_mean(name, METHODS)
        )
    return TUNED.get(name, METHODS[name]) if _is_tuned(settings) else METHODS[name]


def find_taught(name: str, settings: Mapping[str, Any] | None = None) -> "type[Teachable]":
    """Return the class of the method with this name, with adapters if the settings say so."""
    entry = entry_of(name, settings)
    if entry.needs_torch:
        before_torch()
    try:
        taught: Any = getattr(import_module(f"dafuse.taught.{entry.module}"), entry.cls)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dafuse"):
            raise
        what = f"{name} with adapters" if _is_tuned(settings) else f"the method {name}"
        raise DafuseError(
            f"{what} needs {error.name}, which is not installed: pip install 'dafuse[torch]'"
        ) from None
    return taught


def before_torch() -> None:
    """Let waiting threads sleep, because spinning ones slow lessons down on a busy machine.

    OpenMP reads this when torch loads it; set later, it would only reach child processes.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _is_tuned(settings: Mapping[str, Any] | None) -> bool:
    return (settings or {}).get("tune", "none") != "none"

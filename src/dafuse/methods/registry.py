"""The methods by name. A new one needs its file, its line here and its recipe."""

from dataclasses import fields
from typing import Any

from dafuse.errors import DafuseError, did_you_mean
from dafuse.methods.anacp import AnaCP
from dafuse.methods.aper import APER
from dafuse.methods.coda import CODAPrompt
from dafuse.methods.contract import Method
from dafuse.methods.daf import DAF, DAFPaper
from dafuse.methods.daf_retrieval import DAFRetrieval
from dafuse.methods.dualprompt import DualPrompt
from dafuse.methods.ease import EASE
from dafuse.methods.finetune import Finetune
from dafuse.methods.foster import FOSTER
from dafuse.methods.icarl import ICaRL
from dafuse.methods.joint import Joint
from dafuse.methods.klda import KLDA
from dafuse.methods.l2p import L2P
from dafuse.methods.layup import LayUP
from dafuse.methods.lift import LIFT
from dafuse.methods.memo import MEMO
from dafuse.methods.mos import MOS
from dafuse.methods.options import Options
from dafuse.methods.ranpac import RanPAC
from dafuse.methods.simplecil import SimpleCIL
from dafuse.methods.slca import SLCA
from dafuse.methods.ssiat import SSIAT
from dafuse.methods.tuna import TUNA

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        *(DAF, DAFPaper, DAFRetrieval),
        *(Finetune, Joint),  # the bounds
        *(SimpleCIL, APER),  # prototypes
        *(LIFT, RanPAC, LayUP, KLDA, AnaCP),  # closed form
        SLCA,  # full tuning
        SSIAT,  # one shared adapter
        *(EASE, MOS, TUNA),  # an adapter for each task
        *(L2P, DualPrompt, CODAPrompt),  # prompts
        *(ICaRL, MEMO, FOSTER),  # rehearsal
    )
}


def find_method(name: str) -> type[Method]:
    if name not in METHODS:
        hint = did_you_mean(name, METHODS)
        raise DafuseError(f"no method is called {name!r}; there are {', '.join(METHODS)}{hint}")
    return METHODS[name]


def require_observes(name: str, stream: str, options: Options | None = None) -> None:
    """Refuse a stream without tasks for a method that learns task by task."""
    if why := find_method(name).needs_tasks(options or {}):
        able = ", ".join(other for other, method in METHODS.items() if method.observes)
        raise DafuseError(
            f"{name} {why} and cannot observe the stream {stream!r}; methods that can: {able}"
        )


def checked_options(name: str, options: Options) -> dict[str, Any]:
    """Return every option as `with_defaults`; refuse values of which no method can be made."""
    found = with_defaults(name, options)
    find_method(name).validate(found)
    return found


def with_defaults(name: str, options: Options) -> dict[str, Any]:
    """Return every option of the method: the given ones, and defaults for the others."""
    defaults = {f.name: f.default for f in fields(find_method(name)) if f.name != "trainer"}
    if unknown := sorted(options.keys() - defaults.keys()):
        raise DafuseError(
            f"the method {name} has no option {', '.join(unknown)}; "
            f"it has {', '.join(defaults) or 'none'}" + did_you_mean(unknown[0], defaults)
        )
    return {**defaults, **options}

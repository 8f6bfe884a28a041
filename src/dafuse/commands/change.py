"""`dafuse forget`, `rename`, `undo` and `trim`; and what Ctrl-C says where a model is changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from dafuse.commands.open_model import AS_USUAL, NetworkOptions, open_folder
from dafuse.commands.options import Model
from dafuse.engine.display import TerminalProgress
from dafuse.product import steps
from dafuse.product.folder import KEPT, UNFINISHED, ModelFolder
from dafuse.product.summary import described
from dafuse.product.version import VersionRef
from dafuse.wording import counted, shown

Keep = Annotated[
    int,
    Parameter(
        help="how many versions to keep, the newest included; "
        f"those beyond {KEPT} are always deleted by themselves"
    ),
]


def forget(
    model: Model,
    /,
    *classes: Annotated[str, Parameter(required=True)],
    for_good: bool = False,
    network: NetworkOptions = AS_USUAL,
) -> None:
    """Remove classes with their records; the others are solved again without them.

    What stays of them, a few numbers or more, depends on the method and is said.

    Args:
        classes: names; see dafuse info MODEL
        for_good: also delete all older versions of the model: undo has nothing left to take back
    """
    ModelFolder(model).require()
    with ctrl_c_tells(model):
        forgotten = open_folder(model, network).forget(*classes, for_good=for_good)
    names = shown(", ".join(forgotten.names))
    if not forgotten.for_good:
        print(f"forgot {names}; dafuse undo brings back what was forgotten, --for-good would not")
    else:
        deleted = counted(len(forgotten.versions), "older version")
        print(f"forgot {names} for good: deleted their records and {deleted} of the model")
    if forgotten.remains:
        print(f"what is left: {forgotten.remains}")


def rename(model: Model, old: str, new: str, /) -> None:
    """Give a class another name.

    Args:
        old: its name now
        new: its name from now on
    """
    with ctrl_c_tells(model):
        steps.rename(ModelFolder(model), old, new, TerminalProgress())
        print(shown(f"{old} is now called {new}"))


def undo(model: Model, /) -> None:
    """Take back the last step: learn, forget or rename; called again, the step before it.

    What was undone is deleted.
    """
    with ctrl_c_tells(model):
        undone, now = steps.undo(ModelFolder(model), TerminalProgress())
        print(shown(f"undid version {undone.number}: {described(undone.step)}"))
        known = counted(len(now.classes), "class", "classes")
        print(f"the model is version {now.number} again, with {known}")


def trim(model: Model, /, *, keep: Keep) -> None:
    """Delete all but the newest versions of a model.

    The model answers as before; undo goes back less far.
    """
    with ctrl_c_tells(model):
        deleted = steps.trim(ModelFolder(model), keep, TerminalProgress())
    print(f"deleted {counted(len(deleted), 'older version')}; the model answers as before")


@contextmanager
def ctrl_c_tells(model: str) -> Iterator[None]:
    """Say on Ctrl-C what is on disk: the step may just have been finished."""
    folder = ModelFolder(model)
    before = folder.current_if_any()
    try:
        yield
    except KeyboardInterrupt:
        found = _found(model, before, folder.current_if_any())
        if list(folder.path.glob(f"{UNFINISHED}/*.safetensors")):
            found += "; the same command goes on where this one ended"
        raise KeyboardInterrupt(found) from None


def _found(model: str, before: VersionRef | None, after: VersionRef | None) -> str:
    if after == before:
        return "nothing changed"
    now = f"{model} is at version {after.number}" if after else f"{model} was changed"
    was = f"at version {before.number}" if before else "no model"
    return f"{now} now, and was {was} before: see dafuse info {model}"

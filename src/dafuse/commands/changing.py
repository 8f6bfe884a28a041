"""For commands that change a model: Ctrl-C says what the model is then."""

from collections.abc import Iterator
from contextlib import contextmanager

from dafuse.product.folder import ModelFolder
from dafuse.product.version import VersionRef


@contextmanager
def changing(model: str) -> Iterator[None]:
    """On Ctrl-C in here, say what is on disk: the step may just have been finished."""
    folder = ModelFolder(model)
    before = folder.current_if_any()
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_found(model, before, folder.current_if_any())) from None


def _found(model: str, before: VersionRef | None, after: VersionRef | None) -> str:
    if after == before:
        return "nothing changed"
    now = f"{model} is at version {after.number}" if after else f"{model} was changed"
    was = f"at version {before.number}" if before else "no model"
    return f"{now} now, and was {was} before: see dafuse info {model}"

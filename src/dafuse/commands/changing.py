"""What the commands share that change a model: Ctrl-C says what the model is then."""

from collections.abc import Iterator
from contextlib import contextmanager

from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import Parent


@contextmanager
def changing(model: str) -> Iterator[None]:
    """Stopped in here, say what is on disk: the step may just have been finished."""
    before = _head(model)
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_found(model, before)) from None


def _found(model: str, before: Parent | None) -> str:
    after = _head(model)
    if after == before:
        return "nothing changed"
    now = f"{model} is at version {after.number}" if after else f"{model} was changed"
    was = f"at version {before.number}" if before else "no model"
    return f"{now} now, and was {was} before: see dafuse info {model}"


def _head(model: str) -> Parent | None:
    """The version that counts; None where there is none that can be read."""
    try:
        return ModelFolder(model).head()
    except DafuseError:
        return None

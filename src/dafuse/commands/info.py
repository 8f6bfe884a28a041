"""`dafuse info MODEL` and `dafuse ledger MODEL`: what a model knows, and what it keeps."""

from dafuse.commands.options import Model
from dafuse.product.folder import ModelFolder
from dafuse.product.ledger import make_ledger
from dafuse.product.summary import summarise
from dafuse.wording import shown_lines


def info(model: Model, /) -> None:
    """Show the classes of a model, when each was learned and from how many images; and its size.

    Its whole history is shown, too, also the steps that undo cannot reach any more.
    """
    print(shown_lines(summarise(ModelFolder(model)).lines()))


def ledger(model: Model, /) -> None:
    """Show every file and tensor of a model, what it is and how large; and why none is an image."""
    print(shown_lines(make_ledger(ModelFolder(model)).lines()))

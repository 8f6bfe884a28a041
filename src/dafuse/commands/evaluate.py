"""`dafuse evaluate MODEL SOURCE`: accuracy, confused classes, calibration; with a page of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dafuse.commands.open_model import AS_USUAL, NetworkOptions, open_model
from dafuse.commands.options import Asked, Source
from dafuse.files import require_writable
from dafuse.progress import LineProgress, Progress
from dafuse.wording import shown_lines


def evaluate(
    model: Asked, source: Source, /, *, page: str | None = None, network: NetworkOptions = AS_USUAL
) -> None:
    """Test a model on images that it was not taught with: the source's test part, if it has one.

    This shows the accuracy of each class, the classes that are confused, how far probabilities are
    off, and what is answered unknown.

    Args:
        page: an .html file to write, too: confusion matrix, the worst mistakes as images,
            calibration, accuracy against how many images are refused
    """
    if page:
        require_writable(page)

    with _showing_progress() as progress:
        evaluation = open_model(model, network).evaluate(source, progress)
    print(shown_lines(evaluation.lines()))
    if page:
        from dafuse.product.evaluation_page import write_evaluation_page

        write_evaluation_page(evaluation, page, Path(model).resolve().name, source)
        print(f"page: {Path(page).resolve()}")


@contextmanager
def _showing_progress() -> Iterator[Progress]:
    """Show bars where rich is installed, else lines: an exported file is tested without it."""
    try:
        from dafuse.engine.display import TerminalProgress
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        yield LineProgress()
    else:
        with TerminalProgress() as progress:
            yield progress

"""`dafuse evaluate MODEL SOURCE`: accuracy, confused classes, calibration; with a page of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dafuse.commands.open_model import add_network_options, open_model
from dafuse.commands.parsing import SOURCE, Parser
from dafuse.files import require_writable
from dafuse.progress import LineProgress, Progress
from dafuse.wording import shown_lines


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse evaluate",
        description="Test a model on images that it was not taught with: accuracy of each class, "
        "the classes it confuses, how far its probabilities are off, what it answers unknown.",
    )
    parser.add_argument("model", help="the model's folder, or an .onnx file of dafuse export")
    parser.add_argument("source", help=SOURCE + "; where it comes split, the test part counts")
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="write an .html file, too: confusion matrix, the worst mistakes as pictures, "
        "calibration, accuracy against how many images are refused",
    )
    add_network_options(parser)
    options = parser.parse_args(arguments)
    if options.page:
        require_writable(options.page)

    with _showing_progress() as progress:
        evaluation = open_model(options).evaluate(options.source, progress)
    print(shown_lines(evaluation.lines()))
    if options.page:
        from dafuse.product.evaluation_page import write_evaluation_page

        model = Path(options.model).resolve().name
        write_evaluation_page(evaluation, options.page, model, options.source)
        print(f"page: {Path(options.page).resolve()}")


@contextmanager
def _showing_progress() -> Iterator[Progress]:
    """Bars where rich is installed, without which exported files must do; else lines alone."""
    try:
        from dafuse.engine.display import TerminalProgress
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        yield LineProgress()
    else:
        with TerminalProgress() as progress:
            yield progress

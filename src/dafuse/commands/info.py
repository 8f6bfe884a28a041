"""`dafuse info MODEL`: classes, where they come from, size, history."""

from dafuse.commands.parsing import Parser
from dafuse.product.folder import ModelFolder
from dafuse.product.summary import summarise
from dafuse.wording import shown_lines


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse info",
        description="The classes of a model, when each was learned and from how many images; its "
        "size; and its whole history, also the steps that undo cannot reach any more.",
    )
    parser.add_argument("model", help="the model's folder")
    options = parser.parse_args(arguments)
    print(shown_lines(summarise(ModelFolder(options.model)).lines()))

"""`dafuse ledger MODEL`: everything that is kept about the data, in words and bytes."""

from dafuse.commands.parsing import Parser
from dafuse.product.folder import ModelFolder
from dafuse.product.ledger import make_ledger
from dafuse.wording import shown_lines


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse ledger",
        description="Every file and tensor of a model, what it is and how large; and why there is "
        "no image among them.",
    )
    parser.add_argument("model", help="the model's folder")
    options = parser.parse_args(arguments)
    print(shown_lines(make_ledger(ModelFolder(options.model)).lines()))

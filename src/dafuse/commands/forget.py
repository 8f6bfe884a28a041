"""`dafuse forget MODEL CLASS... [--for-good]`: remove classes."""

from dafuse.commands.changing import changing
from dafuse.commands.open_model import add_network_options, open_folder
from dafuse.commands.parsing import Parser
from dafuse.product.folder import ModelFolder
from dafuse.wording import counted, shown


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse forget",
        description="Remove classes with their records; the others are solved again without them. "
        "What stays of them, a few numbers or more, depends on the method and is said.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("classes", nargs="+", metavar="class", help="names; see dafuse info MODEL")
    parser.add_argument(
        "--for-good",
        action="store_true",
        help="also delete all older versions of the model: undo has nothing left to take back",
    )
    add_network_options(parser)
    options = parser.parse_args(arguments)
    ModelFolder(options.model).require()
    with changing(options.model):
        forgotten = open_folder(options).forget(*options.classes, for_good=options.for_good)
    names = shown(", ".join(forgotten.names))
    if not forgotten.for_good:
        print(f"forgot {names}; dafuse undo brings back what was forgotten, --for-good would not")
    else:
        deleted = counted(len(forgotten.versions), "older version")
        print(f"forgot {names} for good: deleted their records and {deleted} of the model")
    if forgotten.remains:
        print(f"what is left: {forgotten.remains}")

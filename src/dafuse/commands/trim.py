"""`dafuse trim MODEL --keep 5`: delete old versions."""

from dafuse.commands.changing import changing
from dafuse.commands.parsing import Parser
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import KEPT, ModelFolder
from dafuse.product.steps import trim
from dafuse.wording import counted


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse trim",
        description="Delete all but the newest versions of a model. The model answers as before; "
        f"undo goes back less far. Beyond {KEPT} versions the oldest are deleted by themselves.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument(
        "--keep", type=int, required=True, help="how many versions to keep, the newest included"
    )
    options = parser.parse_args(arguments)
    with changing(options.model):
        deleted = trim(ModelFolder(options.model), options.keep, TerminalProgress())
    print(f"deleted {counted(len(deleted), 'older version')}; the model answers as before")

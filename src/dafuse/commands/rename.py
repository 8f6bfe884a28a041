"""`dafuse rename MODEL OLD NEW`: give a class another name."""

from dafuse.commands.changing import changing
from dafuse.commands.parsing import Parser
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import ModelFolder
from dafuse.product.steps import rename
from dafuse.wording import shown


def main(arguments: list[str]) -> None:
    parser = Parser(prog="dafuse rename", description="Give a class another name.")
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("old", help="its name now")
    parser.add_argument("new", help="its name from now on")
    options = parser.parse_args(arguments)
    with changing(options.model):
        rename(ModelFolder(options.model), options.old, options.new, TerminalProgress())
        print(shown(f"{options.old} is now called {options.new}"))

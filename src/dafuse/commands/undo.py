"""`dafuse undo MODEL`: take back the last step."""

from dafuse.commands.changing import changing
from dafuse.commands.parsing import Parser
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import ModelFolder
from dafuse.product.steps import undo
from dafuse.product.summary import describe
from dafuse.wording import counted, shown


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse undo",
        description="Take back the last step: learn, forget or rename; called again, the step "
        "before it. What was undone is deleted.",
    )
    parser.add_argument("model", help="the model's folder")
    options = parser.parse_args(arguments)
    with changing(options.model):
        undone, now = undo(ModelFolder(options.model), TerminalProgress())
        print(shown(f"undid version {undone.number}: {describe(undone)}"))
        known = counted(len(now.classes), "class", "classes")
        print(f"the model is version {now.number} again, with {known}")

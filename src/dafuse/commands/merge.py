"""`dafuse merge MODEL MODEL... --out NEW`: one model that knows what all were taught."""

from dafuse.commands.open_model import WEIGHTS
from dafuse.commands.parsing import Parser
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import ModelFolder
from dafuse.wording import counted


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse merge",
        description="Add up models that were taught apart on one network by a method that trains "
        "nothing. Classes of the same name are joined. The models stay as they are.",
    )
    parser.add_argument("models", nargs="+", metavar="model", help="folders of models")
    parser.add_argument("--out", required=True, help="the new model's folder")
    parser.add_argument("--weights", help=WEIGHTS)
    options = parser.parse_args(arguments)
    for model in options.models:
        ModelFolder(model).require()

    from dafuse.product.classifier import Classifier

    with TerminalProgress() as progress:
        merged = Classifier.merge(
            options.models, options.out, weights=options.weights, progress=progress
        )
    images = sum(record.images for record in merged.version.classes)
    print(
        f"{options.out}: {counted(len(merged.classes), 'class', 'classes')} from "
        f"{counted(images, 'image')}, of {len(options.models)} models"
    )
    step = merged.version.step
    if step["twice"]:
        print(f"images taught to more than one of them, which count twice: {step['twice']}")
    if not step["compared"]:
        print(
            "images that were taught to more than one of them count twice, which cannot be told: "
            "each model hashes pictures with a key of its own"
        )

"""`dafuse export MODEL FILE`: one file that predicts elsewhere."""

from pathlib import Path

from dafuse.commands.open_model import WEIGHTS
from dafuse.commands.parsing import Parser
from dafuse.product.folder import ModelFolder
from dafuse.wording import counted


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse export",
        description="Write a model as one file. It takes pixels and gives probabilities; class "
        "names and how images must be cut are in its properties. dafuse predict answers with an "
        ".onnx file as with the model.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("file", help="its name ends in .onnx")
    parser.add_argument(
        "--int8",
        action="store_true",
        help="weights of one byte instead of four (.onnx): smaller, faster, a little less exact",
    )
    parser.add_argument("--weights", help=WEIGHTS)
    options = parser.parse_args(arguments)
    file = Path(options.file).expanduser()
    ModelFolder(options.model).require()

    from dafuse.product.classifier import Classifier
    from dafuse.product.export import require_exportable

    require_exportable(file)
    classifier = Classifier.open(options.model, weights=options.weights, device="cpu")
    exported = classifier.export(file, options.int8)
    card, difference = exported.card, exported.difference
    size = card.preprocessing.size
    print(
        f"{file}: {counted(len(card.classes), 'class', 'classes')}, {card.weights}, "
        f"{file.stat().st_size / 1e6:.1f} MB, "
        f"images of {size} x {size} pixels"
    )
    print(
        f"compared with the model on {difference.pictures} made-up pictures: the same answer for "
        f"{difference.same}; probabilities differ by up to {difference.largest:.2g}, "
        f"by {difference.mean:.2g} on average"
    )

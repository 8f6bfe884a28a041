"""`dafuse merge MODEL MODEL... --out NEW`: one model that knows what all were taught."""

from typing import Annotated

from cyclopts import Parameter

from dafuse.commands.options import Weights
from dafuse.engine.display import TerminalProgress
from dafuse.product.folder import ModelFolder
from dafuse.wording import counted


def merge(
    *models: Annotated[str, Parameter(required=True)], out: str, weights: Weights = None
) -> None:
    """Add up models that were taught apart on one network by a method that trains nothing.

    Classes of the same name are joined. The models stay as they are.

    Args:
        models: folders of models
        out: the new model's folder
    """
    for model in models:
        ModelFolder(model).require()

    from dafuse.product.classifier import Classifier

    with TerminalProgress() as progress:
        merged = Classifier.merge(models, out, weights=weights, progress=progress)
    images = sum(record.images for record in merged.version.classes)
    print(
        f"{out}: {counted(len(merged.classes), 'class', 'classes')} from "
        f"{counted(images, 'image')}, of {len(models)} models"
    )
    step = merged.version.step
    if step["twice"]:
        print(f"images taught to more than one of them, which count twice: {step['twice']}")
    if not step["compared"]:
        print(
            "images that were taught to more than one of them count twice, which cannot be told: "
            "each model hashes images with a key of its own"
        )

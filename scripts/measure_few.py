"""How often a model is right about classes of few images, and how sure it is of its answers.

    python scripts/measure_few.py CIFAR --out few --seeds 2

`CIFAR` is a tree `{train,test}/<class>/<image>` (of any data set). Each seed chooses 20 classes.
Ten of them are taught with a few images each: alone, after the others with as few, and after the
others with 50 each. A row of `few/measured.jsonl` is one such model, on all test images of the ten
classes of the last lesson (`few`) and of those before (`before`).
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from dafuse import Classifier
from dafuse.product.evaluation import calibration_error
from dafuse.product.reports import LearnReport, likely_share

CLASSES = 10  # of a lesson
MANY = 50  # images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, nargs="+", default=[1, 2, 5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        names = sorted(path.name for path in (options.data / "train").iterdir())
        order = np.random.default_rng(seed).permutation(len(names))
        chosen = [names[number] for number in order[: 2 * CLASSES]]
        for images in options.images:
            for before in (0, images, MANY):
                row = measure(options, seed, chosen[:CLASSES], before, chosen[CLASSES:], images)
                with (options.out / "measured.jsonl").open("a") as file:
                    print(json.dumps(row), file=file)
                print(json.dumps(row), flush=True)


def measure(
    options: argparse.Namespace, seed: int, old: list[str], before: int, new: list[str], images: int
) -> dict[str, Any]:
    path = options.out / f"model-{seed}-{before}"
    if before != MANY or not path.exists():  # that one is taught once, and copied
        shutil.rmtree(path, ignore_errors=True)
        taught = Classifier.create(path, seed=seed)
        if before:
            taught.learn(*lesson(options.data, old, before, seed))
    if before:
        shutil.rmtree(options.out / "model", ignore_errors=True)
        taught = Classifier.open(shutil.copytree(path, options.out / "model"))
    report = taught.learn(*lesson(options.data, new, images, seed))
    row: dict[str, Any] = {"seed": seed, "images": images, "images before": before}
    row["few"], of_class = tested(taught, options.data, new)
    if before:
        row["before"], _ = tested(taught, options.data, old)
    return row | told(report, of_class)


def lesson(data: Path, names: list[str], images: int, seed: int) -> tuple[list[Path], list[str]]:
    paths = []
    for name in names:
        files = sorted((data / "train" / name).iterdir())
        order = np.random.default_rng([seed, 7]).permutation(len(files))
        paths += [files[number] for number in order[:images]]
    return paths, [path.parent.name for path in paths]


def tested(
    taught: Classifier, data: Path, names: list[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Of the test images of these classes together; and the accuracy of each class."""
    paths = [path for name in names for path in sorted((data / "test" / name).iterdir())]
    probabilities_NC = taught.probabilities(paths)
    sure_N = probabilities_NC.max(1)
    labels_N = np.array([taught.classes.index(path.parent.name) for path in paths])
    right_N = probabilities_NC.argmax(1) == labels_N
    found = {"accuracy": float(right_N.mean()), "mean probability": float(sure_N.mean())}
    found["calibration error"] = calibration_error(sure_N, right_N)
    rows = {name: taught.classes.index(name) for name in names}
    return found, {name: float(right_N[labels_N == row].mean()) for name, row in rows.items()}


def told(report: LearnReport, of_class: dict[str, float]) -> dict[str, Any]:
    """What `learn` said of the classes of few images, and of how many it was true."""
    tried = [one for one in report.few if one.left_out]
    between = [likely_share(one.found, one.left_out) for one in tried]
    accuracies = [of_class[one.name] for one in tried]
    inside = [low <= is_ <= high for (low, high), is_ in zip(between, accuracies, strict=True)]
    return {
        "left out": sum(one.left_out for one in tried),
        "recognised": sum(one.found for one in tried),
        "classes told": len(tried),
        "classes within": sum(inside),
    }


if __name__ == "__main__":
    main()

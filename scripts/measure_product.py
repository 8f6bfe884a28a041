"""Teach a stream of classes by `Classifier.learn`, beside what people fit to the same features.

    python scripts/measure_product.py CIFAR --classes 60 --images 5 50 --out measured

`CIFAR` is a tree `{train,test}/<class>/<image>` (of any data set). Its classes come in the order
that a benchmark run of the same seed has, five a lesson; the first images of each class by name are
taught. After each lesson the model is tested on the test images of all classes taught so far, and
on those of the classes that it was not taught. After the last one, nearest mean, LDA, ridge
regression, nearest neighbours and, where features are narrow, logistic regression learn all images
taught: the features that the model reads, and the last CLS token alone. They may keep a vector of
each image, which a model of dafuse does not. `measured/measured.json` has the numbers;
docs/product.md says what they mean.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from dafuse import Classifier
from dafuse.backbones.registry import COMPACT
from dafuse.data.stream import class_order
from dafuse.experiments.common_heads import COMMON, Predict
from dafuse.heads.confidence import calibration_error

Paths = list[Path]
Names = list[str]
Labelled = tuple[np.ndarray, np.ndarray]  # features [N, F], labels [N]
WIDEST = 1000  # numbers of a feature, beyond which logistic regression takes hours on a CPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default=COMPACT)
    parser.add_argument("--method", default="lift")
    parser.add_argument("--classes", type=int, default=60)
    parser.add_argument("--increment", type=int, default=5)
    parser.add_argument("--images", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--tests", type=int, default=30, help="test images of each class")
    parser.add_argument("--seed", type=int, default=1993)
    parser.add_argument("--no-others", action="store_true", help="measure the model alone")
    parser.add_argument("--skip", nargs="*", default=[], choices=OTHERS, help="others left out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    everything = sorted(path.name for path in (options.data / "train").iterdir())
    order = class_order(len(everything), "seed", options.seed)
    names = [everything[number] for number in order]
    found: dict[str, Any] = {}
    for images in options.images:
        model, lessons = teach(options, names, images)
        found[str(images)] = {"lessons": lessons}
        if not options.no_others:
            found[str(images)]["others"] = compare(options, model, names, images)
        (options.out / "measured.json").write_text(json.dumps(found, indent=1))


def teach(
    options: argparse.Namespace, names: Names, images: int
) -> tuple[Classifier, list[dict[str, Any]]]:
    """A model after all lessons, and what was measured after each."""
    path = options.out / f"model-{images}"
    shutil.rmtree(path, ignore_errors=True)
    model = Classifier.create(path, options.backbone, method=options.method)
    test_paths, test_names = files(options.data / "test", names, options.tests)
    lessons = []
    for seen in range(options.increment, options.classes + 1, options.increment):
        new = names[seen - options.increment : seen]
        start = time.perf_counter()
        report = model.learn(*files(options.data / "train", new, images))
        seconds = time.perf_counter() - start
        lessons.append(
            {"classes": seen, "seconds": seconds, "bytes": bytes_of_version(model)}
            | {"left_out_accuracy": report.accuracy}
            | tested(model, test_paths, np.array(test_names))
        )
        print(images, json.dumps(lessons[-1]), flush=True)
    return model, lessons


def tested(model: Classifier, paths: Paths, names_N: np.ndarray) -> dict[str, Any]:
    """Measure the model's answers to images of classes that it knows, and of others."""
    answers = model.predict(paths)
    best_N = np.array([answer.top[0][0] for answer in answers])
    sure_N = np.array([answer.probability for answer in answers])
    familiarity_N = np.array([answer.familiarity for answer in answers])
    unknown_N = np.array([answer.unknown for answer in answers])
    known_N = np.isin(names_N, model.classes)
    right_N = best_N == names_N
    found = {
        "accuracy": float(right_N[known_N].mean()),
        "calibration_error": calibration_error(sure_N[known_N], right_N[known_N]),
        "known_refused": float(unknown_N[known_N].mean()),
    }
    if not known_N.all():
        found["untaught_refused"] = float(unknown_N[~known_N].mean())
        found["auroc"] = float(roc_auc_score(known_N, familiarity_N))
    return found


def compare(
    options: argparse.Namespace, model: Classifier, names: Names, images: int
) -> dict[str, dict[str, Any]]:
    """Accuracy of other classifiers on the same images, by features and by kind."""
    taught = names[: options.classes]
    parts = [
        files(options.data / "train", taught, images),
        files(options.data / "test", taught, options.tests),
    ]
    found: dict[str, dict[str, Any]] = {}
    for depths in ("last", model.version.settings.get("features", "last")):
        train, test = (
            (
                model.extractor.features(paths, depths),
                np.array([taught.index(one) for one in labels]),
            )
            for paths, labels in parts
        )
        found[depths] = {}
        for kind, fit in OTHERS.items():
            too_wide = kind == "logistic regression" and train[0].shape[1] > WIDEST
            if too_wide or kind in options.skip:
                continue
            start = time.perf_counter()
            predict = fit(*scaled(train, train))
            if predict is not None:
                right = predict(scaled(test, train)[0]) == test[1]
                seconds = time.perf_counter() - start
                found[depths][kind] = {"accuracy": float(right.mean()), "seconds": seconds}
                print(images, depths, kind, json.dumps(found[depths][kind]), flush=True)
    return found


def scaled(these: Labelled, train: Labelled) -> Labelled:
    """Features in a unit in which they have a mean square of 1, as penalties expect."""
    return these[0] / np.sqrt((train[0] ** 2).mean()), these[1]


def nearest_mean(feats_NF: np.ndarray, labels_N: np.ndarray) -> Predict:
    """The class whose mean has the largest cosine with the features."""
    means_CF = np.stack([feats_NF[labels_N == c].mean(0) for c in range(labels_N.max() + 1)])
    means_CF /= np.linalg.norm(means_CF, axis=1, keepdims=True)
    return lambda others_NF: (others_NF @ means_CF.T).argmax(1)


def neighbours(count: int) -> Callable[[np.ndarray, np.ndarray], Predict | None]:
    """The commonest class among so many images of the largest cosine."""

    def fit(feats_NF: np.ndarray, labels_N: np.ndarray) -> Predict | None:
        if len(labels_N) < count:
            return None
        found = KNeighborsClassifier(count, algorithm="brute", metric="cosine")
        return found.fit(feats_NF, labels_N).predict

    return fit


OTHERS: dict[str, Callable[[np.ndarray, np.ndarray], Predict | None]] = {
    "nearest mean": nearest_mean,
    "nearest neighbour": neighbours(1),
    "20 nearest neighbours": neighbours(20),
    **COMMON,
}


def files(root: Path, names: Names, count: int) -> tuple[Paths, Names]:
    """The first images of each class by name, and the names of their classes."""
    paths = [path for name in names for path in sorted((root / name).iterdir())[:count]]
    return paths, [path.parent.name for path in paths]


def bytes_of_version(model: Classifier) -> int:
    """Return the bytes of the newest version, without older ones."""
    files = [model.folder.object_file(digest) for digest in model.version.objects]
    files.append(model.folder.version_file(model.version.number))
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    main()

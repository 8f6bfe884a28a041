"""Teach a stream of classes through `dafuse learn`, beside what people use today.

    python scripts/measure_product.py CIFAR --backbone deit_tiny_patch16_224.fb_in1k --out measured

`CIFAR` is a tree `{train,test}/<class>/<image>` (of any data set). Its classes come in the order
that a benchmark run of the same seed has, a few at a time. After each lesson every classifier is
tested on all test images of the classes taught so far. The others work on features of the same
frozen network, without an adapter. `measured/measured.json` has the numbers; docs/product.md says
what they mean. Started again, it goes on after the last finished lesson.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from dafuse import Classifier
from dafuse.cli import main as dafuse
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.folders import folder
from dafuse.data.pictures import read_all, require_read
from dafuse.data.stream import Stream, Task, class_order, task_sizes
from dafuse.product.evaluation import calibration_error
from dafuse.product.unknown import familiarity
from dafuse.vit.load import load_backbone

Labelled = tuple[np.ndarray, np.ndarray]  # unit features [N, D], labels [N]
EPOCHS = 20  # over the features of a lesson, for what is trained on them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--increment", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1993)
    parser.add_argument("--holdout", type=float, default=0.0)
    parser.add_argument("--lessons", type=int, help="stop after so many")
    parser.add_argument("--alternatives", action="store_true", help="measure these instead")
    options = parser.parse_args()
    data = folder(options.data)
    order = class_order(len(data.classes), "seed", options.seed)
    stream = Stream(data, order, task_sizes(len(order), options.increment))
    options.out.mkdir(parents=True, exist_ok=True)
    measure = measure_alternatives if options.alternatives else measure_taught
    measure(stream, options)


def measure_taught(stream: Stream, options: argparse.Namespace) -> None:
    """A lesson by the command, a test of what is known, and of what is not taught yet."""
    model, file = options.out / "model", options.out / "measured.json"
    lessons = json.loads(file.read_text()) if file.exists() else []
    test_paths = [path for task in stream for path in _paths(task.test)]
    test_pixels = require_read(test_paths, read_all(test_paths))
    test_labels = np.concatenate([task.test.labels for task in stream])
    for task in list(stream)[len(lessons) : options.lessons]:
        lesson = options.out / f"lesson-{task.number:02}"
        lesson.mkdir(exist_ok=True)
        for name in task.class_names:
            if not (lesson / name).exists():
                (lesson / name).symlink_to((options.data / "train" / name).resolve())
        start = time.perf_counter()
        made = ["--backbone", options.backbone] if task.index == 0 else []
        dafuse(["learn", str(model), str(lesson), "--holdout", str(options.holdout), *made])
        seconds = time.perf_counter() - start
        taught = Classifier.open(model)
        rows = np.array([taught.classes.index(name) for name in stream.classes[: task.seen]])
        logits = taught.model.logits(taught.model.features(test_pixels)).cpu()
        known = test_labels < task.seen
        right = rows[test_labels[known]]
        lessons.append(
            {"classes": task.seen, "seconds": seconds, "bytes": _bytes_of_version(taught)}
            | _tested(taught, logits, known, right)
        )
        file.write_text(json.dumps(lessons, indent=1))
        print(json.dumps(lessons[-1]), flush=True)


def _tested(
    taught: Classifier, logits_NC: torch.Tensor, known_N: np.ndarray, right_K: np.ndarray
) -> dict[str, Any]:
    """Of the images of known classes (and their rows), and of the others, if there are any."""
    model = taught.model
    correct_K = logits_NC[known_N].argmax(1).numpy() == right_K
    raw_K = torch.softmax(logits_NC[known_N], 1).amax(1).numpy()
    calibrated_K = model.probabilities(logits_NC[known_N]).amax(1).numpy()
    scores_N = familiarity(logits_NC).numpy()
    found = {
        "accuracy": 100 * float(correct_K.mean()),
        "sharpness": model.sharpness,
        "calibration_error_before": calibration_error(raw_K, correct_K),
        "calibration_error_after": calibration_error(calibrated_K, correct_K),
        "known_accepted": float((scores_N[known_N] >= model.threshold).mean()),
    }
    if not known_N.all():
        found["untaught_refused"] = float((scores_N[~known_N] < model.threshold).mean())
        found["auroc"] = float(roc_auc_score(known_N, scores_N))
    return found


class Alternative(Protocol):
    """Adds classes by features; says which of the classes added so far features show."""

    keeps: str

    def add(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> None: ...
    def predict(self, feats_ND: np.ndarray) -> np.ndarray: ...
    def bytes(self) -> int: ...


class Neighbours:
    keeps = "a vector of each image"

    def __init__(self, neighbours: int) -> None:
        self.feats: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.neighbours = KNeighborsClassifier(neighbours, algorithm="brute")  # of unit vectors

    def add(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> None:
        self.feats.append(feats_ND)
        self.labels.append(labels_N)
        self.neighbours.fit(np.concatenate(self.feats), np.concatenate(self.labels))

    def predict(self, feats_ND: np.ndarray) -> np.ndarray:
        return self.neighbours.predict(feats_ND)

    def bytes(self) -> int:
        return sum(feats.nbytes for feats in self.feats)


class Means:
    keeps = "a vector of each class"

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def add(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> None:
        for label in np.unique(labels_N):
            mean_D = feats_ND[labels_N == label].mean(0)
            self.rows.append(mean_D / np.linalg.norm(mean_D))

    def predict(self, feats_ND: np.ndarray) -> np.ndarray:
        return (feats_ND @ np.stack(self.rows).T).argmax(1)

    def bytes(self) -> int:
        return sum(row.nbytes for row in self.rows)


class PartialFit:
    """It must be told the number of classes to come, and is trained on each lesson's own."""

    keeps = "a vector of each class"

    def __init__(self, classes: int, seed: int) -> None:
        self.classes, self.order = np.arange(classes), np.random.default_rng(seed)
        self.sgd = SGDClassifier(loss="log_loss", random_state=seed)
        self.seen = 0

    def add(self, feats_ND: np.ndarray, labels_N: np.ndarray) -> None:
        self.seen = max(self.seen, int(labels_N.max()) + 1)
        for _ in range(EPOCHS):
            shuffled = self.order.permutation(len(labels_N))
            self.sgd.partial_fit(feats_ND[shuffled], labels_N[shuffled], self.classes)

    def predict(self, feats_ND: np.ndarray) -> np.ndarray:
        return self.sgd.decision_function(feats_ND)[:, : self.seen].argmax(1)

    def bytes(self) -> int:
        return self.sgd.coef_.nbytes + self.sgd.intercept_.nbytes


def measure_alternatives(stream: Stream, options: argparse.Namespace) -> None:
    """Seconds of a lesson are those of its features and of adding them."""
    alternatives: dict[str, Alternative] = {
        "nearest neighbour": Neighbours(1),
        "20 nearest neighbours": Neighbours(20),
        "nearest class mean": Means(),
        "SGDClassifier.partial_fit": PartialFit(len(stream.classes), options.seed),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in alternatives}
    tested: list[Labelled] = []
    for task, train, test, feature_seconds in _features(stream, options.backbone):
        tested.append(test)
        test_feats, test_labels = (np.concatenate(part) for part in zip(*tested, strict=True))
        for name, alternative in alternatives.items():
            start = time.perf_counter()
            alternative.add(*train)
            seconds = feature_seconds + time.perf_counter() - start
            right = alternative.predict(test_feats) == test_labels
            found[name].append(
                {"classes": task.seen, "seconds": seconds, "accuracy": 100 * float(right.mean())}
                | {"bytes": alternative.bytes(), "keeps": alternative.keeps}
            )
            print(name, json.dumps(found[name][-1]), flush=True)
        (options.out / "alternatives.json").write_text(json.dumps(found, indent=1))


def _features(stream: Stream, backbone: str) -> Iterator[tuple[Task, Labelled, Labelled, float]]:
    """Of each task: itself, what to learn and to test with, and the seconds that the first took.

    Reading the images is part of them, as it is of the seconds of `dafuse learn`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vit = load_backbone(backbone).to(device)

    @torch.inference_mode()
    def of(images: ImageSet, task: Task) -> Labelled:
        alone = ImageSet(_paths(images), images.labels - task.first)
        nothing = alone.take(alone.labels < 0)
        dataset = Dataset("lesson", task.class_names, alone, nothing)
        loader = Loader(dataset, vit.preprocessing, device)
        parts = [vit(batch) for batch, _ in loader.test_batches(loader.dataset.train, 256)]
        feats_ND = torch.nn.functional.normalize(torch.cat(parts), dim=1).cpu().numpy()
        return feats_ND, loader.dataset.train.labels + task.first

    for task in stream:
        start = time.perf_counter()
        train = of(task.train, task)
        seconds = time.perf_counter() - start
        yield task, train, of(task.test, task), seconds


def _paths(images: ImageSet) -> list[Path | np.ndarray]:
    return [images.items[number] for number in images.index.tolist()]


def _bytes_of_version(taught: Classifier) -> int:
    """Of the files that the newest version is made of, without those of older versions."""
    files = [taught.folder.object_file(digest) for digest in set(taught.version.objects)]
    files.append(taught.folder.version_file(taught.version.number))
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    main()

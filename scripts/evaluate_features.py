"""Measure a frozen network's features by simple classifiers, few images a class.

    python scripts/evaluate_features.py --images cifar100
    python scripts/evaluate_features.py --images cifar100 \
        --backbone deit_tiny_patch16_224.fb_in1k --weights deit_tiny_patch16_224.safetensors

`--images` is a tree `{train,test}/<class>/<image>`. The first `--per-class` training images of each
class by file name are used, and all test images. Three classifiers: nearest mean (cosine to the
mean of the class), linear discriminant analysis (one covariance for all classes, shrunk as Ledoit
and Wolf do), and ridge regression on one-hot labels, whose strength is chosen on every fifth
training image.
"""

import argparse
import json
from pathlib import Path
from typing import get_args

import numpy as np

from dafuse.backbones.depths import Depths
from dafuse.backbones.extractor import Extractor
from dafuse.backbones.registry import COMPACT
from dafuse.experiments.common_heads import lda
from dafuse.taught.open_extractor import open_extractor

STRENGTHS = [10.0**e for e in range(-2, 6)]
Split = tuple[np.ndarray, np.ndarray]  # features [N, D] and labels [N]


def extract(extractor: Extractor, tree: Path, per_class: int | None, depths: Depths) -> Split:
    """Features and labels of the first images of each class (None: all of them)."""
    folders = sorted(folder for folder in tree.iterdir() if folder.is_dir())
    files = [sorted(folder.iterdir())[:per_class] for folder in folders]
    labels_N = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files])
    return extractor.features([file for of_class in files for file in of_class], depths), labels_N


def nearest_mean(train: Split, test: Split) -> float:
    """Accuracy of cosine similarity to the class means."""
    (feats_ND, labels_N), (test_MD, truth_M) = train, test
    means_CD = np.eye(labels_N.max() + 1)[labels_N].T @ unit(feats_ND)
    return float(((unit(test_MD) @ unit(means_CD).T).argmax(1) == truth_M).mean())


def unit(x_ND: np.ndarray) -> np.ndarray:
    return x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)


def discriminant(train: Split, test: Split) -> float:
    """Accuracy of linear discriminant analysis."""
    predict = lda(train[0].astype(np.float64), train[1])
    if predict is None:
        raise SystemExit("LDA wants two training images of each class: --per-class 2 or more")
    return float((predict(test[0]) == test[1]).mean())


def ridge(train: Split, test: Split, strength: float) -> float:
    """Accuracy of ridge regression on one-hot labels, over standardised features with a bias."""
    (feats_ND, labels_N), (test_MD, truth_M) = train, test
    mean, std = feats_ND.mean(0), feats_ND.std(0, ddof=1)
    x_ND, z_MD = ((feats - mean).astype(np.float64) / std for feats in (feats_ND, test_MD))
    y_NC = np.eye(labels_N.max() + 1)[labels_N]
    gram_DD = x_ND.T @ x_ND + strength * np.eye(x_ND.shape[1])
    weight_DC = np.linalg.solve(gram_DD, x_ND.T @ (y_NC - y_NC.mean(0)))
    return float(((z_MD @ weight_DC + y_NC.mean(0)).argmax(1) == truth_M).mean())


def best_strength(train: Split) -> float:
    held = np.arange(len(train[1])) % 5 == 0
    fit, tune = ((train[0][chosen], train[1][chosen]) for chosen in (~held, held))
    return max(STRENGTHS, key=lambda strength: ridge(fit, tune, strength))


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--images", type=Path, required=True, help="tree of train/ and test/")
    parser.add_argument("--backbone", default=COMPACT, help="exact tag")
    parser.add_argument("--weights", help="its .safetensors; by default ours, or the hub's")
    parser.add_argument("--depths", choices=get_args(Depths), default="last")
    parser.add_argument("--per-class", type=int, default=50, help="training images of each class")
    args = parser.parse_args()

    extractor = open_extractor(args.backbone, args.weights)
    train = extract(extractor, args.images / "train", args.per_class, args.depths)
    test = extract(extractor, args.images / "test", None, args.depths)
    strength = best_strength(train)
    found = {
        "nearest_mean_%": nearest_mean(train, test),
        "lda_%": discriminant(train, test),
        "ridge_%": ridge(train, test, strength),
    }
    about = {
        "backbone": extractor.tag,
        "weights_sha256": extractor.sha256,
        "depths": args.depths,
        "train_images": len(train[1]),
        "test_images": len(test[1]),
        "ridge_strength": strength,
    }
    print(json.dumps(about | {name: round(100 * share, 2) for name, share in found.items()}))


if __name__ == "__main__":
    main()

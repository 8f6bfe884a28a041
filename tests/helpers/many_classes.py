"""A model of very many classes, made up in memory: nobody has to teach them one by one."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dafuse.product.classifier import Classifier
from dafuse.product.predictor import Predictor
from helpers.product_models import taught


def name_of(number: int) -> str:
    return f"class {number:05d}"


def many_classes(path: Path, classes: int) -> Classifier:
    """A model that was taught two classes, and now has so many of them, with random weights."""
    classifier = taught(path, {0: 2, 1: 2}, method="simplecil")
    version, known = classifier.version, classifier.model
    records = [
        replace(version.classes[0], id=number, name=name_of(number)) for number in range(classes)
    ]
    rng = np.random.default_rng(0)
    width = known.head.weights_CF.shape[1]
    weights_CF = rng.standard_normal((classes, width)).astype(np.float32)
    head = replace(known.head, weights_CF=weights_CF, bias_C=np.zeros(classes))
    names = [record.name for record in records]
    predictor = Predictor(names, known.encode, head, known.preprocessing, known.threads)
    classifier._now = (replace(version, classes=records), predictor)
    return classifier

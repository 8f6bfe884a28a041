"""Made-up models of very many classes, for `bench_scale`: real in every array, cheap to make.

A few records are taught, and the classes share them in turn. Neither seconds nor bytes depend on
what is in a record; and a record that several classes have is one file, so that ten thousand
classes fit on any disk.
"""

from pathlib import Path
from typing import cast

import numpy as np

from dafuse.backbones.backbone import Backbone
from dafuse.backbones.depths import Depths, FeaturePart
from dafuse.benchmarks.setting import SEED
from dafuse.heads.confidence import BEND
from dafuse.heads.familiarity import MOST_DIRECTIONS, Familiarity
from dafuse.heads.head import Head
from dafuse.heads.many import many
from dafuse.heads.strips import entries
from dafuse.product.classifier import Classifier
from dafuse.product.objects import put_arrays
from dafuse.product.version import ClassRecord, now
from dafuse.seeds import numpy_generator
from dafuse.taught.contract import CLASS, WHICH, Arrays, Lesson, Numbers, under
from dafuse.taught.lift import TaughtLift

PER_CLASS = 50  # images of each class, known and new
DISTINCT = 50  # records that classes share in turn
TOKEN = 192  # columns of the last CLS token, as those of the embedded network
SPREAD = 3.0  # std of an image about its class mean, whose own std is 1


class MadeUpFeatures:
    """Stand-in for a network, which names its columns and computes none of them."""

    depth = 12

    def __init__(self, width: int) -> None:
        token = min(TOKEN, width // 2)
        last = self.depth - 1
        self._parts = [
            FeaturePart(last, "mean", width - token),
            FeaturePart(last, "cls", token),
        ]

    def parts(self, depths: Depths) -> list[FeaturePart]:
        return self._parts[1:] if depths == "last" else self._parts


class KnownClasses:
    """The knowledge of a method of so many classes, for lessons that all begin there."""

    def __init__(self, width: int, classes: int) -> None:
        self.width, self.classes = width, classes
        distinct = min(classes, DISTINCT)
        taught = new_method(width)
        taught.learn(lesson_of(width, 0, distinct))
        self._records = under(CLASS, taught.arrays())
        self._distinct, numbers = distinct, taught.numbers()
        method = new_method(width)
        if many(classes, classes * PER_CLASS, width, method.solved.kinds):
            method.read_records(self._record)
            _repeat(method, self._records, classes)
        else:
            rows = np.arange(classes) % distinct
            repeated = {CLASS + name: array[rows] for name, array in self._records.items()}
            method.load(repeated, numbers)
        found = method.arrays()
        self._arrays: Arrays = {k: v for k, v in found.items() if k != WHICH}
        self._numbers: Numbers = method.numbers()

    def method(self) -> TaughtLift:
        """Return the method as it is loaded for a lesson."""
        method = new_method(self.width)
        if "derived/sum" in self._arrays:
            method.read_records(self._record)
        method.load(self._arrays, self._numbers)
        return method

    def lesson(self, new: int) -> Lesson:
        return lesson_of(self.width, self.classes, new)

    def head(self) -> Head:
        return self.method().head()

    def _record(self, number: int) -> Arrays:
        return {name: array[number % self._distinct] for name, array in self._records.items()}


def new_method(width: int) -> TaughtLift:
    made_up = cast(Backbone, MadeUpFeatures(width))
    return TaughtLift(made_up, TaughtLift.defaults({}), SEED)


def lesson_of(width: int, known: int, new: int) -> Lesson:
    """Return a lesson of new classes of made-up features, beside so many known ones."""
    rng = numpy_generator(SEED, "features", known, new)
    labels_N = np.repeat(np.arange(new), PER_CLASS)
    means_CF = rng.standard_normal((new, width), dtype=np.float32)
    feats_NF = SPREAD * rng.standard_normal((len(labels_N), width), dtype=np.float32)
    return Lesson(
        [f"class {number}" for number in range(known + new)],
        known,
        [PER_CLASS] * known + [0] * new,
        [],
        labels_N + known,
        feats_NF + means_CF[labels_N],
    )


def made_head(classes: int, width: int) -> Head:
    """Return the head of a model with a weight vector for each class, of made-up numbers."""
    rng = numpy_generator(SEED, "head", classes, width)
    token, directions = min(TOKEN, width // 2), min(classes, MOST_DIRECTIONS)
    likeness = Familiarity(
        (rng.standard_normal((classes, directions)) / directions).astype(np.float16),
        np.ones(classes, np.float32),
        1.0,
        0.35,
        np.zeros(token, np.float32),
        np.eye(token, dtype=np.int8),
        np.ones(token, np.float32),
        width - token,
        1.0,
    )
    weights_CF = rng.integers(-32767, 32767, (classes, width), dtype=np.int16)
    step_F, bias_C = np.full(width, 1e-6, np.float32), np.zeros(classes, np.float32)
    return Head(weights_CF, bias_C, step_F, bend=BEND, sharpness=10.0, likeness=likeness)


def write_model(path: Path, classes: int, features: Depths) -> Classifier:
    """Write a model of so many classes on the embedded network, with all its files."""
    distinct = min(classes, DISTINCT)
    classifier = Classifier.create(path, device="cpu", features=features)
    images, names = noise_images(0, distinct, 4)
    classifier.learn(images, names, recognise=False)
    if classes == distinct:
        return classifier
    folder, version = classifier.folder, classifier.version
    reference = folder.current()
    stored = [folder.arrays(one.record) for one in version.classes]
    records = {name: np.stack([one[name] for one in stored]) for name in stored[0]}
    method = TaughtLift(classifier.extractor, version.settings, version.seed)
    method.read_records(lambda number: stored[number % distinct])
    _repeat(method, records, classes)
    arrays = {**method.arrays(), WHICH: np.zeros(0, np.int64)}
    when, digests = now(), [one.record for one in version.classes]
    known = [
        ClassRecord(n, f"class {n}", 4, 0, when, when, digests[n % distinct])
        for n in range(classes)
    ]
    step = {"did": "merge", "when": when, "models": [path.name], "classes": classes}
    changes = {**put_arrays(folder, arrays, known), "numbers": method.numbers()}
    later = version.next(step, reference.sha256, next_id=classes, **changes)
    folder.publish(later, later.number)
    classifier.refresh()
    return classifier


def noise_images(first: int, classes: int, each: int) -> tuple[list[np.ndarray], list[str]]:
    """Return images of noise and the names of their classes."""
    rng = numpy_generator(SEED, "noise", first, classes)
    pixels = rng.integers(0, 256, (classes * each, 128, 128, 3), dtype=np.uint8)
    return list(pixels), [f"class {first + row // each}" for row in range(len(pixels))]


def formula(classes: int, records: int, width: int, token: int, rank: int = 16) -> dict[str, int]:
    """Return the bytes of a model of many classes, by kind, without the headers of its files."""
    shared, steps = -(-width // 16), -(-width // 96)
    mean = 2 * width + 4 * shared
    return {
        "records": records * (8 + mean + (rank + 1) * (width + 4 * steps)),
        "predict": classes * (mean + 4) + 4 * (entries(width) + 2 * width + token + 2 * token**2),
        "derived": 16 * entries(width) + 8 * width + 8 * classes,
    }


def _repeat(method: TaughtLift, records: dict[str, np.ndarray], classes: int) -> None:
    """Make a method know so many classes that share these records in turn."""
    distinct = len(records["counts"])
    whole, rest = divmod(classes, distinct)
    solver = method.many
    part = solver.records(range(distinct))
    totals = solver.require_totals()
    totals.add(part, float(whole))
    part.take(range(rest))
    totals.add(part)
    rows = np.arange(classes) % distinct
    solver.go_on_from({name: array[rows] for name, array in records.items()})
    solver.solve()

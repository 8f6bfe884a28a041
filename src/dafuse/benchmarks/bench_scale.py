"""Very many classes and images, on features that are made up: what grows with their number.

Adding five classes to many is compared with adding them to few; predicting among many with
predicting among a thousand; the bytes of a model with their formula; the memory of many images with
that of few. Where a network's time counts, it is that of the embedded network.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dafuse.backbones.depths import Depths
from dafuse.benchmarks.bench_product import in_new_process
from dafuse.benchmarks.large_models import (
    PER_CLASS,
    TOKEN,
    KnownClasses,
    formula,
    lesson_of,
    made_head,
    noise_images,
    write_model,
)
from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
from dafuse.benchmarks.setting import Parts, Setting
from dafuse.heads.head import Head
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import predicted

NEW = 5  # classes in a lesson
BATCH, TOP = 64, 5  # images asked about at once, classes named
LESSON = Goal("ratio", most=2)  # of many classes, to few
PREDICTING = Goal("ratio", most=1.5)  # of many classes, to a thousand
EXACT = Goal("ratio", least=1, most=1)
FLAT = Goal("ratio", most=1.1)


@dataclass(frozen=True)
class ScaleSizes:
    classes: tuple[int, ...]  # known before a lesson, of the narrower features
    width: int  # as many columns as the embedded network has with features=top
    full: tuple[int, ...]  # the same, of as many columns as the embedded network has by default
    full_width: int
    few: int  # classes that predicting is compared with
    asked: int  # classes to predict among
    model: tuple[int, int]  # classes of the two models that have files
    features: Depths  # of those models
    images: tuple[int, ...]
    image_width: int  # columns, where images are added up


USUAL = ScaleSizes(
    (10, 1000, 10_000, 100_000), 768, (10, 10_000), 5184, 1000, 100_000,
    (10, 10_000), "moments", (10_000, 1_000_000, 10_000_000), 64,
)  # fmt: skip
SIZES = {
    "gpu": USUAL,
    "cpu": USUAL,
    "quick": ScaleSizes((4, 2100), 32, (3,), 48, 10, 2100, (2, 2100), "last", (100, 5000), 8),
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    classes, width = setting.classes or sizes.classes, setting.width or sizes.width
    images = setting.images or sizes.images
    asked = setting.classes[-1] if setting.classes else sizes.asked
    chosen: Parts = {
        f"a lesson, {width:,} columns": partial(_lessons, setting, classes, width),
        f"predicting, {width:,} columns": partial(_predicting, setting, sizes, asked, width),
        "memory": partial(_memory, setting, images, sizes.image_width),
    }
    if setting.classes or setting.width:  # nobody asked for models of other sizes
        return chosen
    full, full_width = sizes.full, sizes.full_width
    return chosen | {
        f"a lesson, {full_width:,} columns": partial(_lessons, setting, full, full_width),
        "a lesson, network and files": partial(_whole_lessons, setting, sizes),
        f"predicting, {full_width:,} columns": partial(
            _predicting, setting, sizes, full[-1], full_width
        ),
        "bytes": partial(_bytes, setting, sizes),
    }


def _lessons(setting: Setting, classes: tuple[int, ...], width: int) -> list[BenchRow]:
    """Time the algebra alone: a method that is loaded learns from features."""
    known: dict[int, KnownClasses] = {}
    with setting.progress.bar(f"models of {width:,} columns", len(classes)) as bar:
        for count in classes:
            known[count] = KnownClasses(width, count)
            bar.advance(note=f"{count:,} classes")

    def learn(count: int) -> float:
        method, lesson = known[count].method(), known[count].lesson(NEW)
        start = time.perf_counter()
        method.learn(lesson)
        return time.perf_counter() - start

    variants = {f"{count:,} classes": partial(learn, count) for count in classes}
    measured = setting.alternate(variants, f"lessons, {width:,} columns", tuple(variants))
    return _against_the_first(setting, measured, LESSON, f"{NEW * PER_CLASS} images")


def _against_the_first(
    setting: Setting, measured: dict[str, Measured], goal: Goal, note: str
) -> list[BenchRow]:
    (name, base), *others = measured.items()
    judged = None if setting.quick else goal
    return [
        compared(name, "s", base, note=note),
        *(compared(what, "s", one, (name, base), "share", judged) for what, one in others),
    ]


def _whole_lessons(setting: Setting, sizes: ScaleSizes) -> list[BenchRow]:
    """Time lessons as people teach them: images in memory, the embedded network, all files."""
    with tempfile.TemporaryDirectory() as folder:
        models: dict[int, Path] = {}
        with setting.progress.bar("models with files", len(sizes.model)) as bar:
            for count in sizes.model:
                models[count] = Path(folder) / f"{count}"
                write_model(models[count], count, sizes.features)
                bar.advance(note=f"{count:,} classes")
        images, names = noise_images(10**6, NEW, 2 if setting.quick else PER_CLASS)

        def learn(count: int) -> float:
            with tempfile.TemporaryDirectory(dir=folder) as fresh:
                path = Path(fresh) / "model"
                shutil.copytree(models[count], path)
                classifier = Classifier.open(path, device="cpu")
                start = time.perf_counter()
                classifier.learn(images, names)
                return time.perf_counter() - start

        classifier = Classifier.open(models[sizes.model[0]], device="cpu")

        def network() -> float:
            start = time.perf_counter()
            classifier.features(images)
            return time.perf_counter() - start

        variants: dict[str, Callable[[], float]] = {
            f"{count:,} classes": partial(learn, count) for count in sizes.model
        }
        variants["the network's features alone"] = network
        measured = setting.alternate(variants, "whole lessons", tuple(variants))
    alone = measured.pop("the network's features alone")
    rows = _against_the_first(setting, measured, LESSON, f"{len(images)} images")
    return [*rows, compared("the network's features alone", "s", alone)]


def _predicting(setting: Setting, sizes: ScaleSizes, asked: int, width: int) -> list[BenchRow]:
    """Time one batch: from its features, and from images by the embedded network."""
    rounds = {sizes.few: made_head(sizes.few, width), asked: KnownClasses(width, asked).head()}
    feats_NF = lesson_of(width, 0, 2).feats_NF
    assert feats_NF is not None
    with tempfile.TemporaryDirectory() as folder:
        classifier = Classifier.create(Path(folder) / "model", device="cpu")
        size = classifier.extractor.preprocessing.size
        squares = np.zeros((BATCH, 3, size, size), np.float32)

        def answer(head: Head, images: bool) -> float:
            names = [f"class {number}" for number in range(head.classes)]
            start = time.perf_counter()
            if images:
                classifier.extractor.encode(squares)
            shares_NC, familiar_N = head.answers(feats_NF[:BATCH])
            for shares_C, familiar in zip(shares_NC, familiar_N, strict=True):
                predicted(names, shares_C, float(familiar), head.threshold, TOP)
            return time.perf_counter() - start

        variants = {
            f"{count:,} classes, {what}": partial(answer, head, images)
            for what, images in (("the head alone", False), ("with the network", True))
            for count, head in rounds.items()
        }
        measured = setting.alternate(variants, f"predicting, {width:,} columns", tuple(variants))
    rows, found = [], list(measured.items())
    for pair in (found[:2], found[2:]):
        rows += _against_the_first(setting, dict(pair), PREDICTING, f"{len(squares)} images")
    return rows


def _bytes(setting: Setting, sizes: ScaleSizes) -> list[BenchRow]:
    """Count the files of a model of many classes, and compare them with the formula."""
    count = sizes.model[1]
    with tempfile.TemporaryDirectory() as folder:
        classifier = write_model(Path(folder) / "model", count, sizes.features)
        version, place = classifier.version, classifier.folder
        records = {one.record for one in version.classes}
        width = classifier.model.head.weights_CF.shape[1]
        kinds = {"records": records, "predict": {version.predict}, "derived": {version.derived}}
        expected = formula(count, len(records), width, TOKEN)
        found = {
            kind: [_without_header(place.object_file(digest)) for digest in digests]
            for kind, digests in kinds.items()
        }
        description = place.version_file(version.number).stat().st_size
    rows = []
    for kind, files in found.items():
        wanted = Measured([float(expected[kind])])
        each = sum(header for _, header in files) / len(files)
        counted = Measured([float(sum(content for content, _ in files))])
        what = f"{kind}, {len(files):,} files of {count:,} classes"
        note = f"beside headers of {each:.0f} B in each"
        base = "the formula", wanted
        rows.append(compared(what, "B", counted, base, "share", EXACT, note))
    rows.append(compared("names and numbers of a class", "B", Measured([description / count])))
    return rows


def _without_header(file: Path) -> tuple[int, int]:
    """Return the bytes of a file's tensors, and those of its header."""
    with file.open("rb") as opened:
        header = 8 + int.from_bytes(opened.read(8), "little")
    return file.stat().st_size - header, header


def _memory(setting: Setting, images: tuple[int, ...], width: int) -> list[BenchRow]:
    """Add up made-up images in new processes; their peak memory is the measurement."""
    used: dict[str, Measured] = {}
    took: dict[str, Measured] = {}
    module = "dafuse.benchmarks.streamed_sums"
    with setting.progress.bar("images added up", len(images)) as bar:
        for count in images:
            seconds, memory = in_new_process(sys.executable, "-m", module, count, width)
            used[f"{count:,} images"] = Measured([memory])
            took[f"{count:,} images"] = Measured([seconds])
            bar.advance(note=f"{count:,} images")
    (name, base), *others = used.items()
    goal = None if setting.quick else FLAT
    note = f"{width} columns"
    return [
        compared(f"memory, {name}", "MB", base, note=note),
        *(
            compared(f"memory, {what}", "MB", one, (name, base), "share", goal)
            for what, one in others
        ),
        *(compared(f"seconds, {what}", "s", one) for what, one in took.items()),
    ]

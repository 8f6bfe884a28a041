"""The waits of a user, measured in fresh processes: a prediction, a lesson.

A lesson is compared with a script that computes the same features and class means (`plain_lesson`),
and with itself beside two busy loops; predicting with many classes, with predicting with few.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
from dafuse.benchmarks.setting import SEED, Parts, Setting
from dafuse.data.sketches import SKETCHES, write_sketches
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.seeds import numpy_generator

CLASSES = 5  # in each lesson
COLD = Goal("value", most=0.8)  # seconds of a prediction
MEMORY = Goal("value", most=200)  # MB of a prediction
LESSON = Goal("ratio", most=2)  # over the plain script
MANY = Goal("ratio", most=1.1)  # over few classes
BUSY = Goal("ratio", most=3)  # over a quiet machine
BUSY_LOOPS = 2
# A small process in between: the memory of a new process includes that of its parent.
LAUNCHER = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
said = process.stderr.read().decode()
_, status, used = os.wait4(process.pid, 0)
seconds = time.perf_counter() - start
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss, said[-300:]]))
"""


@dataclass(frozen=True)
class ProductSizes:
    per_class: int  # images, in a lesson
    height: int  # of the images
    few: int  # classes of the smaller model
    many: int
    asked: int  # images per prediction, beside one alone
    most: int | None = None  # rounds, however many were asked for


SIZES = {
    "gpu": ProductSizes(50, 480, 10, 1000, 64),
    "cpu": ProductSizes(50, 480, 10, 1000, 64),
    "quick": ProductSizes(2, 48, 2, 4, 2, most=1),  # a new process for each number
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    return {
        "one image, cold": partial(_cold, setting, sizes),
        "a lesson, cold": partial(_lesson, setting, sizes),
        "many classes": partial(_many, setting, sizes),
    }


def _cold(setting: Setting, sizes: ProductSizes) -> list[BenchRow]:
    with tempfile.TemporaryDirectory() as folder:
        images, model = _drawn(folder, sizes), Path(folder) / "model"
        _dafuse("learn", model, images)
        image = next(images.glob("*/*.jpg"))
        used: list[float] = []

        def predict() -> float:
            seconds, memory = _dafuse("predict", model, image)
            used.append(memory)
            return seconds

        measured = setting.alternate({"predict": predict}, "predict", most=sizes.most)
    goals = (None, None) if setting.quick else (COLD, MEMORY)
    return [
        compared("dafuse predict", "s", measured["predict"], goal=goals[0]),
        compared("dafuse predict, memory", "MB", Measured(used), goal=goals[1]),
    ]


def _lesson(setting: Setting, sizes: ProductSizes) -> list[BenchRow]:
    with tempfile.TemporaryDirectory() as folder:
        images = _drawn(folder, sizes)

        def plain() -> float:
            out = Path(folder) / "means.npy"
            module = "dafuse.benchmarks.plain_lesson"
            return in_new_process(sys.executable, "-m", module, images, out)[0]

        def learn() -> float:
            with tempfile.TemporaryDirectory(dir=folder) as fresh:
                return _dafuse("learn", Path(fresh) / "model", images)[0]

        def beside() -> float:
            with busy_loops(BUSY_LOOPS):
                return learn()

        variants: dict[str, Callable[[], float]] = {"plain": plain, "learn": learn, "busy": beside}
        measured = setting.alternate(variants, "lesson", most=sizes.most)
    script, quiet = ("the plain script", measured["plain"]), ("a quiet machine", measured["learn"])
    goals = (None, None) if setting.quick else (LESSON, BUSY)
    note = f"{CLASSES * sizes.per_class} images, {sizes.height} pixels high"
    return [
        compared("features and class means", "s", measured["plain"], note=note),
        compared("dafuse learn", "s", measured["learn"], script, "share", goals[0]),
        compared("dafuse learn, 2 busy loops", "s", measured["busy"], quiet, "share", goals[1]),
    ]


def _many(setting: Setting, sizes: ProductSizes) -> list[BenchRow]:
    with tempfile.TemporaryDirectory() as folder:
        image = next(_drawn(folder, sizes).glob("*/*.jpg"))
        models = {count: _taught(Path(folder), count) for count in (sizes.few, sizes.many)}

        def predict(count: int, images: int) -> float:
            return _dafuse("predict", models[count], *([image] * images))[0]

        variants: dict[str, Callable[[], float]] = {
            f"{images} of {count}": partial(predict, count, images)
            for images in (1, sizes.asked)
            for count in models
        }
        measured = setting.alternate(variants, "many classes", most=sizes.most)
    goal, rows = None if setting.quick else MANY, []
    for images in (1, sizes.asked):
        few, many = (measured[f"{images} of {count}"] for count in models)
        what, baseline = f"images: {images}, classes", (f"{sizes.few} classes", few)
        rows.append(compared(f"{what}: {sizes.few}", "s", few))
        rows.append(compared(f"{what}: {sizes.many}", "s", many, baseline, "share", goal))
    return rows


def _drawn(folder: str, sizes: ProductSizes) -> Path:
    names = list(SKETCHES)[:CLASSES]
    return write_sketches(Path(folder) / "images", names, sizes.per_class, SEED, sizes.height)


def _taught(folder: Path, count: int) -> Path:
    """Make a model of so many classes of noise: speed does not depend on the images."""
    rng = numpy_generator(SEED, "noise", count)
    images = rng.integers(0, 256, (2 * count, 16, 16, 3), dtype=np.uint8)
    path = folder / f"model of {count}"
    Classifier.create(path).learn(images, [f"class {number // 2}" for number in range(2 * count)])
    return path


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run so many endless loops in other processes meanwhile."""
    with ExitStack() as running:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            running.callback(process.wait)
            running.callback(process.kill)
        yield


def _dafuse(*arguments: object) -> tuple[float, float]:
    return in_new_process(sys.executable, "-m", "dafuse", *arguments)


def in_new_process(*command: object) -> tuple[float, float]:
    """Return the seconds and the peak memory in MB of a command that must succeed."""
    launched = [sys.executable, "-c", LAUNCHER, *map(str, command)]
    done = subprocess.run(launched, capture_output=True, text=True, check=True)
    code, seconds, kilobytes, errors = json.loads(done.stdout)
    if code:
        raise DafuseError(f"{command[3]} failed: {errors.strip()}")
    return seconds, kilobytes * 1024 / 1e6

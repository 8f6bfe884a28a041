"""`dafuse demo`: teach a model, teach it again, merge it with another, test it, on drawings."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table

from dafuse.errors import DafuseError
from dafuse.files import make_folder

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier

TAUGHT, TESTED = 5, 15  # drawings of each class
LESSONS = {"first": 6, "second": 5, "elsewhere": 5}  # folder -> how many new classes it has
MADE = (*LESSONS, "test", "model", "other-model", "merged")  # folders that the demo makes
MARK = ".dafuse-demo"  # says that these folders are the demo's own
Found = TypeVar("Found")


def demo(*, out: str = "runs/demo", seed: int = 0) -> None:
    """Draw images, teach a model some of them and then more, merge it with another, and test it.

    A table and a page show the result. Needs no download.

    Args:
        out: folder for images, models and page
        seed: which images are drawn
    """
    folder = _own_folder(Path(out).expanduser())
    shown = Demo(folder, Console(soft_wrap=True, highlight=False, markup=False))
    shown.draw(seed)
    shown.teach()
    shown.merge()
    shown.show()


class Demo:
    """Demonstration whose steps are timed, each shown with the command that does the same."""

    def __init__(self, out: Path, console: Console) -> None:
        self.out, self.console = out, console
        self.table = Table(box=None, padding=(0, 3, 0, 0))
        for heading in ("step", "seconds", "classes", "right", "right of the first 6"):
            self.table.add_column(heading, justify="left" if heading == "step" else "right")

    def draw(self, seed: int) -> None:
        from dafuse.data.sketches import SKETCHES, write_sketches

        names = list(SKETCHES)
        self.first = names[: LESSONS["first"]]
        self.console.print(f"drawing {len(names)} classes into {self.out}: {', '.join(names)}")

        def write() -> None:
            start = 0
            for folder, count in LESSONS.items():
                write_sketches(self.out / folder, names[start : start + count], TAUGHT, seed)
                start += count
            write_sketches(self.out / "test", names, TESTED, seed + 1)

        _, took = _timed(write)
        self._row(f"draw {len(names) * (TAUGHT + TESTED)} images", took)

    def teach(self) -> None:
        model = self._learn("teach", "model", "first")
        self._ask(model)
        model = self._learn("teach again", "model", "second")
        self._ask(model)

    def merge(self) -> None:
        from dafuse.product.classifier import Classifier

        self._learn("teach another model", "other-model", "elsewhere")
        parts = [self.out / "model", self.out / "other-model"]
        merged = self.out / "merged"
        self._say("merge", *parts, "--out", merged)
        model, took = _timed(lambda: Classifier.merge(parts, merged))
        self._row("merge both", took, model)

    def show(self) -> None:
        from dafuse.product.classifier import Classifier
        from dafuse.product.evaluation_page import write_evaluation_page

        merged, test, page = (self.out / name for name in ("merged", "test", "page.html"))
        self._say("evaluate", merged, test, "--page", page)

        def evaluate() -> float:
            evaluation = Classifier.open(merged).evaluate(test)
            write_evaluation_page(evaluation, page, "merged", str(test))
            return evaluation.accuracy

        accuracy, took = _timed(evaluate)
        self._row("evaluate, with a page", took)
        self.console.print()
        self.console.print(self.table)
        self.console.print()
        self.console.print(f"{accuracy:.1%} of the images that it was not taught with are right")
        self.console.print(f"page: {page.resolve()}")

    def _learn(self, step: str, name: str, lesson: str) -> "Classifier":
        """The model of this name, taught a folder."""
        from dafuse.product.classifier import Classifier

        path, folder = self.out / name, self.out / lesson
        self._say("learn", path, folder)
        there = path.exists()

        def learn() -> Classifier:
            model = Classifier.open(path) if there else Classifier.create(path)
            model.learn(folder)
            return model

        model, took = _timed(learn)
        self._row(step, took, model)
        return model

    def _ask(self, model: "Classifier") -> None:
        """Ask about an image of a class that only the second lesson brings."""
        image = self.out / "test" / "church" / "000.jpg"
        self._say("predict", self.out / "model", image)
        (answer,), took = _timed(lambda: model.predict(image))
        closest, sure = answer.top[0]
        said = f"unknown (closest: {closest})" if answer.unknown else closest
        self.console.print(f"  {said}, {sure:.1%} sure, in {took:.2f} s")

    def _say(self, command: str, *arguments: str | Path) -> None:
        self.console.print(f"dafuse {command} {' '.join(map(str, arguments))}")

    def _row(self, step: str, took: float, model: "Classifier | None" = None) -> None:
        """Add a row; with a model, also how many test images of its classes are right."""
        cells = [step, f"{took:.1f}"]
        if model is not None:
            evaluation = model.evaluate(self.out / "test")
            first = [score for score in evaluation.classes if score.name in self.first]
            cells += [f"{len(model.classes)}", f"{evaluation.accuracy:.1%}"]
            if images := sum(score.images for score in first):
                cells.append(f"{sum(score.right for score in first) / images:.1%}")
        self.table.add_row(*cells)


def _timed(work: Callable[[], Found]) -> tuple[Found, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _own_folder(out: Path) -> Path:
    """The folder, without what an earlier demo left. What no demo made is never touched."""
    there = [out / name for name in MADE if (out / name).exists()]
    if there and not (out / MARK).exists():
        raise DafuseError(f"{there[0]} is there and was not made by the demo: choose another --out")
    make_folder(out)
    (out / MARK).touch()
    for folder in there:
        shutil.rmtree(folder)
    return out

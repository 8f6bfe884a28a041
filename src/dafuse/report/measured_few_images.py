"""Classifiers on few images of few classes: the measured cells read back, as a table and a figure.

`experiments.few_images` says how they are measured. A cell is a number of classes and of images of
each; its accuracies are means over draws, and so is the best of the others, which is the classifier
whose mean is the greatest.
"""

import math
import os
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafuse.engine.results import INPUTS
from dafuse.errors import DafuseError
from dafuse.files import write_atomically
from dafuse.report.drawing import Drawing, NothingToDraw, heat_map, write_in_cells
from dafuse.report.measured_approximations import FORMAT, read_measured
from dafuse.report.tables import UNKNOWN, markdown_rows
from dafuse.shapes import ANYTHING, COUNT, NUMBER, Each, JsonRecord, Keys, Maybe, require_shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "few-images.json"
OWN = "lift"  # whose advantage is told
DIFFERENCE = f"{OWN} less the best of the others"
Means = dict[tuple[int, int], dict[str, float]]  # percent by classifier, of each cell


CELL = Keys(
    {**dict.fromkeys(("classes", "images", "seed"), COUNT), "accuracy": Each(Maybe(NUMBER))},
    {"tested": COUNT, "seconds": NUMBER},
)
CELLS = Keys(
    {"config": Each(ANYTHING), "provenance": INPUTS, "counts": [COUNT], "cells": [CELL]},
)


@dataclass(frozen=True)
class MeasuredCell(JsonRecord):
    """The accuracy of each classifier in one cell and draw."""

    classes: int
    images: int  # of each class
    seed: int
    tested: int = 0  # test images
    accuracy: dict[str, float | None] = field(default_factory=dict)  # None: could not be fitted
    seconds: float = 0.0


@dataclass
class MeasuredCells:
    """All that was measured so far."""

    config: dict[str, Any]
    provenance: dict[str, Any]
    counts: list[int]  # training images of each class
    cells: list[MeasuredCell] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **vars(self), "cells": [one.as_json() for one in self.cells]}


def read_cells(folder: str | os.PathLike[str]) -> MeasuredCells | None:
    """Return what was measured so far, if anything."""
    path = Path(folder) / FILE
    results = read_measured(path)
    if results is None:
        return None
    try:
        require_shape(results, CELLS)
    except ValueError as error:
        raise DafuseError(f"{path} is damaged: {error}; delete it to measure again") from None
    cells = [MeasuredCell.parsed(one) for one in results["cells"]]
    return MeasuredCells(results["config"], results["provenance"], results["counts"], cells)


def means(results: MeasuredCells) -> Means:
    """Return means over draws; NaN for a classifier without a number in a cell."""
    draws: dict[tuple[int, int], list[dict[str, float | None]]] = {}
    for one in sorted(results.cells, key=lambda one: (one.classes, one.images)):
        draws.setdefault((one.classes, one.images), []).append(one.accuracy)
    return {
        cell: {name: _mean([draw[name] for draw in several]) for name in several[0]}
        for cell, several in draws.items()
    }


def advantage(accuracy: dict[str, float]) -> float:
    """Return the points by which `OWN` is above the best classifier of another kind."""
    others = [
        value
        for name, value in accuracy.items()
        if not name.startswith(OWN) and not math.isnan(value)
    ]
    return accuracy[OWN] - max(others, default=math.nan)


def table(results: MeasuredCells) -> tuple[list[str], list[list[str]]]:
    """Return head and rows: one for each cell, then mean and min of the advantage."""
    by_cell = means(results)
    counts = Counter((one.classes, one.images) for one in results.cells)
    names = list(next(iter(by_cell.values()), {}))
    rows = [
        [
            _plural(cell[0], "class", "es") + ", " + _plural(cell[1], "image"),
            str(counts[cell]),
            *(_shown(accuracy[name]) for name in names),
            f"{advantage(accuracy):+.2f}",
        ]
        for cell, accuracy in by_cell.items()
    ]
    gains = [advantage(accuracy) for accuracy in by_cell.values()]
    for name, value in (("mean", statistics.fmean), ("min", min)) if gains else ():
        rows.append([f"{name} of all cells", *[""] * (len(names) + 1), f"{value(gains):+.2f}"])
    return ["Classes, images of each", "Draws", *names, DIFFERENCE], rows


def figure(results: MeasuredCells) -> Drawing:
    """Draw the advantage in each cell: classes down, images of each across."""
    by_cell = means(results)
    classes, images = (sorted({cell[k] for cell in by_cell}) for k in (0, 1))
    if len(by_cell) < 2:
        raise NothingToDraw("the figure needs two measured cells")
    gains = {cell: advantage(accuracy) for cell, accuracy in by_cell.items()}
    values = [[gains.get((down, across), math.nan) for across in images] for down in classes]
    low, high = min(gains.values()), max(gains.values())

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        heat_map(axes, values, low, max(high, low + 0.1), f"{DIFFERENCE} (points)")
        write_in_cells(axes, values, (low + high) / 2, size=11, form="{:+.1f}")
        axes.set_xticks(range(len(images)), [str(count) for count in images])
        axes.set_yticks(range(len(classes)), [str(count) for count in classes])
        axes.set(xlabel="images of a class", ylabel="classes")

    return Drawing(draw)


def write_cells(results: MeasuredCells, file: Path, title: str, missing: str) -> list[str]:
    """Write the table (.md) and the figure (.png); return the lines to tell the user."""
    below = f"\nMissing: {missing}\n" if missing else ""
    note = "Accuracy in percent on all test images of the classes: means over draws.\n"
    markdown, image = (file.with_name(f"{file.name}.{ending}") for ending in ("md", "png"))
    write_atomically(markdown, f"# {title}\n\n{note}\n{markdown_rows(*table(results))}{below}")
    lines = [f"table: {markdown}"]
    try:
        figure(results).write_png(image)
        lines.append(f"figure: {image}")
    except NothingToDraw as why:
        lines.append(f"no figure: {why}")
    return lines


def _mean(values: list[float | None]) -> float:
    known = [100 * value for value in values if value is not None]
    return statistics.fmean(known) if known else math.nan


def _shown(value: float) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:.2f}"


def _plural(count: int, word: str, ending: str = "s") -> str:
    return f"{count} {word}{ending if count != 1 else ''}"

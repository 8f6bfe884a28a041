"""Many settings beside each other, the best on top: a line each, average and final accuracy."""

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dafuse.files import write_atomically
from dafuse.report.drawing import PALETTE, PICTURE, NothingToDraw, canvas, png
from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.setting import comparable
from dafuse.report.tables import Row, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = ("average", "final")
LEAST = 3  # of fewer the table says it all
LINE = 0.26  # inches of a setting
AROUND = 1.1  # inches above and below


def ranking_png(runs: Iterable[RunResult], path: str | os.PathLike[str]) -> None:
    """The figure as a picture 1200 pixels wide, as high as there are settings."""
    rows = ranked(runs)
    if len(rows) < LEAST:
        raise NothingToDraw(f"the figure needs {LEAST} settings on the same data and stream")
    with canvas(8, AROUND + LINE * len(rows), **PICTURE) as figure:
        _draw(figure.subplots(), rows)
        picture = png(figure)
    write_atomically(path, picture)


def ranked(runs: Iterable[RunResult]) -> list[Row]:
    """The rows of the table that have an accuracy, the best average first; none of several data."""
    runs = list(runs)
    if not comparable(runs):
        return []
    known = [row for row in make_table(runs).rows if not math.isnan(row.cells["average"].mean)]
    return sorted(known, key=lambda row: -row.cells["average"].mean)


def _draw(axes: "Axes", rows: list[Row]) -> None:
    places = range(len(rows))
    for key, colour, filled in zip(DRAWN, PALETTE, (True, False), strict=False):
        cells = [row.cells[key] for row in rows]
        deviations = [0.0 if math.isnan(cell.deviation) else cell.deviation for cell in cells]
        axes.errorbar(
            [cell.mean for cell in cells],
            places,
            xerr=deviations if any(deviations) else None,
            fmt="o",
            color=colour,
            markerfacecolor=colour if filled else "white",
            markersize=6,
            label=COLUMNS[key].title,
        )
    axes.set_yticks(places, [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the best on top
    axes.set_xlabel("accuracy (%)")
    axes.figure.legend(loc="outside upper right", ncols=len(DRAWN))

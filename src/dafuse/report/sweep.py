"""One option varied and all else equal: what it does to the accuracies.

So the DAF paper studies its α and γ. The figure is drawn where the runs differ, beside their seeds,
in one option that is a number, and have at least three values of it.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dafuse.files import write_atomically
from dafuse.report.drawing import LINES, PALETTE, PICTURE, NothingToDraw, canvas, png, svg
from dafuse.report.groups import differing_options, group_runs, options_of
from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.tables import Row, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = ("plasticity", "average", "final", "stability")
LEAST = 3  # values of the option


def swept_option(runs: Iterable[RunResult]) -> str:
    """The one numeric option in which these runs differ, as the command line spells it, or ""."""
    runs = list(runs)
    if len({len(run.matrix) for run in runs}) != 1 or any(run.others for run in runs):
        return ""
    differing = differing_options(runs)
    if len(differing) != 1:
        return ""
    values = {options_of(run).get(differing[0]) for run in runs}
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return differing[0] if numbers and len(values) >= LEAST else ""


def sweep(runs: Iterable[RunResult]) -> str:
    """The figure as an SVG element, or "" where there is nothing to draw."""
    option, points = _points(runs)
    if not points:
        return ""
    with canvas() as figure:
        _draw(figure.subplots(), option.removeprefix("method."), points)
        told = "; ".join(
            f"{value:g}: {', '.join(f'{key} {row.cells[key].mean:.1f}' for key in DRAWN)}"
            for value, row in points
        )
        return svg(figure, f"Accuracies in percent over {option}. {told}.")


def sweep_png(runs: Iterable[RunResult], path: str | os.PathLike[str]) -> None:
    """The same figure as a picture 1200 pixels wide."""
    option, points = _points(runs)
    if not points:
        raise NothingToDraw("the figure needs runs that differ in one option, a number, alone")
    with canvas(8, 4.4, **PICTURE) as figure:
        _draw(figure.subplots(), option.removeprefix("method."), points)
        picture = png(figure)
    write_atomically(path, picture)


def _points(runs: Iterable[RunResult]) -> tuple[str, list[tuple[float, Row]]]:
    """The option, and the row of the table at each of its values; none where it cannot be drawn."""
    runs = list(runs)
    option = swept_option(runs)
    if not option:
        return "", []
    values = [options_of(group.runs[0])[option] for group in group_runs(runs)]
    rows = zip(values, make_table(runs).rows, strict=True)
    return option, sorted(rows, key=lambda point: point[0])


def _draw(axes: "Axes", option: str, points: list[tuple[float, Row]]) -> None:
    values = [value for value, _ in points]
    for key, colour, line in zip(DRAWN, PALETTE, LINES, strict=False):
        cells = [row.cells[key] for _, row in points]
        means = [cell.mean for cell in cells]
        deviations = [0.0 if cell.deviation != cell.deviation else cell.deviation for cell in cells]
        label = COLUMNS[key].title
        if any(deviations):
            axes.errorbar(
                values, means, deviations, color=colour, ls=line, marker="o", capsize=2, label=label
            )
        else:
            axes.plot(values, means, color=colour, ls=line, marker="o", label=label)
    axes.set(xlabel=option, ylabel="accuracy (%)")
    axes.legend()

"""Accuracy against speed, after Figure 1 of the DAF paper (arXiv 2601.21341).

A point is a row of the table that has the numbers: average accuracy, images per second in training
(to the right) and in prediction (the colour). What trains nothing, or in its first task alone, has
no speed of training; it stands at the right edge with a mark of its own. Runs whose training was
replayed are left out: how fast they would train is not known.
"""

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from dafuse.files import write_atomically
from dafuse.report.drawing import COLOURS, INK, PICTURE, NothingToDraw, canvas, png, svg
from dafuse.report.labels import name_points
from dafuse.report.measures import human_number
from dafuse.report.runs import RunResult
from dafuse.report.setting import comparable
from dafuse.report.tables import make_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 3  # points with both speeds; of fewer the table says it all
LONGEST_NAME = 32


class Point(NamedTuple):
    name: str
    accuracy: float
    training: float  # images per second; NaN if nothing is trained after the first task
    inference: float  # images per second

    @property
    def trained(self) -> bool:
        return not math.isnan(self.training)


def efficiency(runs: Iterable[RunResult]) -> str:
    """The figure as an SVG element, or "" where there are too few points."""
    points = efficiency_points(runs)
    if not points:
        return ""
    with canvas(6.4, 4.2) as figure:
        _draw(figure, points, label_size=8.5)
        return svg(figure, f"Average accuracy against speed: {'; '.join(map(_told, points))}.")


def efficiency_png(runs: Iterable[RunResult], path: str | os.PathLike[str]) -> None:
    """The same figure as a picture 1200 pixels wide."""
    points = efficiency_points(runs)
    if not points:
        raise NothingToDraw(f"the figure needs {LEAST} methods with both speeds on the same data")
    with canvas(8, 5.2, **PICTURE) as figure:
        _draw(figure, points, label_size=10)
        picture = png(figure)
    write_atomically(path, picture)


def caption(runs: list[RunResult]) -> str:
    """How to read the figure, and where the speeds were measured: they compare on one machine."""
    edge = "What trains nothing after its first task stands at the right edge (▶). "
    points = efficiency_points(runs)
    drawn = {point.name for point in points}
    replayed = {row.name for row in make_table(r for r in runs if r.replayed).rows} - drawn
    left_out = f"Left out, as their training was replayed: {', '.join(sorted(replayed))}. "
    devices = sorted({str(run.provenance.get("device", "an unknown device")) for run in runs})
    return (
        "The higher, the more accurate; the further right, the faster in training; the lighter, "
        "the faster in prediction. "
        + (edge if not all(point.trained for point in points) else "")
        + (left_out if replayed else "")
        + (
            f"All on {devices[0]}."
            if len(devices) == 1
            else f"The speeds do not compare: they were measured on {' and on '.join(devices)}."
        )
    )


def efficiency_points(runs: Iterable[RunResult]) -> list[Point]:
    """What can be drawn, or nothing where fewer than three have both speeds.

    Nor where accuracies do not compare, as of several data sets or streams.
    """
    runs = list(runs)
    if not comparable(runs):
        return []
    points = []
    for row in make_table(run for run in runs if not run.replayed).rows:
        numbers = [row.cells[key].mean for key in ("average", "train_speed", "inference_speed")]
        if not math.isnan(numbers[0]) and not math.isnan(numbers[2]):
            points.append(Point(row.name, *numbers))
    return points if sum(point.trained for point in points) >= LEAST else []


def _told(point: Point) -> str:
    speed = f"{human_number(point.training)} images/s"
    training = speed if point.trained else "nothing after its first task"
    return (
        f"{point.name} has {point.accuracy:.1f} %, trains {training}, "
        f"predicts {human_number(point.inference)} images/s"
    )


def _draw(figure: "Figure", points: list[Point], label_size: float) -> None:
    from matplotlib.colors import LogNorm

    axes = figure.subplots()
    low, high = _limits([point.training for point in points if point.trained], room=1.25)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(*_ticks(low, high))
    axes.minorticks_off()
    accuracies = [point.accuracy for point in points]
    room = max(0.08 * (max(accuracies) - min(accuracies)), 0.5)
    axes.set_ylim(max(min(accuracies) - room, 0.0), min(max(accuracies) + room, 100.0))
    axes.set(xlabel="training (images/s)", ylabel="average accuracy (%)")

    slowest, fastest = _limits([point.inference for point in points])
    colours = LogNorm(slowest, fastest)
    for trained, marker in ((True, "o"), (False, ">")):
        here = [point for point in points if point.trained == trained]
        drawn = axes.scatter(
            [point.training if trained else high for point in here],
            [point.accuracy for point in here],
            c=[point.inference for point in here],
            norm=colours,
            cmap=COLOURS,
            marker=marker,
            s=46,
            edgecolors=INK,  # the darkest and the lightest colour need it on their background
            linewidths=0.8,
            clip_on=False,
            zorder=3,
        )
        if trained:
            bar = figure.colorbar(drawn, ax=axes, label="inference (images/s)", fraction=0.05)
            ticks, labels = _ticks(slowest, fastest)
            bar.set_ticks(ticks, labels=labels)
            bar.minorticks_off()
            bar.outline.set_visible(False)
    name_points(
        figure,
        axes,
        [(point.training if point.trained else high, point.accuracy) for point in points],
        [_short(point.name) for point in points],
        label_size,
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _limits(values: list[float], room: float = 1.0) -> tuple[float, float]:
    """From the least to the greatest with room around, and at least a factor of two apart."""
    low, high = min(values) / room, max(values) * room
    widen = math.sqrt(max(2 * low / high, 1.0))
    return low / widen, high * widen


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round numbers from low to high for a logarithmic axis, at least two and better three."""
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [step * 10.0**k for k in decades for step in steps if low <= step * 10.0**k <= high]
        if len(found) >= 3:
            break
    return found, [f"{value:g}" for value in found]

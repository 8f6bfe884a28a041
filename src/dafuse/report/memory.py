"""Accuracy against what is kept: a table with bytes and bytes a class, and a figure.

In the figure a point is a row of the table. Options that are words tell series apart, by colour and
marker; options that are numbers, and differ within a series, are written beside the points.
"""

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dafuse.files import write_atomically
from dafuse.report.drawing import PALETTE, PICTURE, NothingToDraw, canvas, png
from dafuse.report.groups import differing_options, group_runs, options_of
from dafuse.report.labels import name_points
from dafuse.report.measures import COLUMNS, human_bytes
from dafuse.report.runs import RunResult
from dafuse.report.setting import comparable
from dafuse.report.tables import UNKNOWN, Row, make_table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = ("Method", "Runs", "Average", "Final", "Kept", "Kept a class")
MARKERS = ("o", "s", "^", "D")
LEAST = 3  # settings


class Point(NamedTuple):
    series: str  # its options that are words
    label: str  # its options that are numbers
    kept: float  # bytes
    accuracy: float  # average, percent


def rows(runs: Iterable[RunResult]) -> list[list[str]]:
    """Under `HEAD`, those that keep least first; none of few settings, or of several data sets."""
    runs = list(runs)
    if len(points(runs)) < LEAST:
        return []
    classes = [group.runs[0].seen_classes[-1] for group in group_runs(runs)]
    found = list(zip(make_table(runs).rows, classes, strict=True))
    found.sort(key=lambda one: _bytes(one[0]) if not math.isnan(_bytes(one[0])) else math.inf)
    return [
        [
            row.name,
            str(row.runs),
            *(show(row.cells[key], COLUMNS[key]) for key in ("average", "final", "kept_bytes")),
            UNKNOWN if math.isnan(_bytes(row)) else human_bytes(_bytes(row) / known),
        ]
        for row, known in found
    ]


def points(runs: Iterable[RunResult]) -> list[Point]:
    """What can be drawn: settings whose accuracy and bytes are known, on the same data."""
    runs = list(runs)
    if not comparable(runs):
        return []
    varied = differing_options(runs)
    settings = [options_of(group.runs[0]) for group in group_runs(runs)]
    table = make_table(runs).rows
    words = [[own[key] for key in varied if isinstance(own.get(key), str)] for own in settings]
    series = [", ".join(own) or row.name for own, row in zip(words, table, strict=True)]
    found = []
    for name, own, row in zip(series, settings, table, strict=True):
        peers = [other for other, its in zip(settings, series, strict=True) if its == name]
        label = ", ".join(
            f"{key.removeprefix('method.')} {own[key]}"
            for key in varied
            if _is_number(own.get(key)) and len({str(peer.get(key)) for peer in peers}) > 1
        )
        kept, accuracy = _bytes(row), row.cells["average"].mean
        if kept > 0 and not math.isnan(accuracy):
            found.append(Point(name, label, kept, accuracy))
    return found


def memory_png(runs: Iterable[RunResult], path: str | os.PathLike[str]) -> None:
    """The figure as a picture 1200 pixels wide."""
    drawn = points(runs)
    if len(drawn) < LEAST:
        raise NothingToDraw(f"the figure needs {LEAST} settings on the same data and stream")
    with canvas(8, 6.4, **PICTURE) as figure:
        _draw(figure, drawn)
        picture = png(figure)
    write_atomically(path, picture)


def _draw(figure: "Figure", drawn: list[Point]) -> None:
    axes = figure.subplots()
    axes.set_xscale("log")
    for number, series in enumerate(dict.fromkeys(point.series for point in drawn)):
        own = sorted(point[2:] for point in drawn if point.series == series)
        axes.plot(
            *zip(*own, strict=True),
            color=PALETTE[number % len(PALETTE)],
            marker=MARKERS[number // len(PALETTE) % len(MARKERS)],
            lw=0.8,
            label=series,
        )
    axes.set(xlabel="kept beside the backbone", ylabel="average accuracy (%)")
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(value))
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    figure.legend(loc="outside lower left", ncols=3, fontsize=8.5)
    axes.autoscale_view()
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    named = [point for point in drawn if point.label]
    if named:
        places = [(point.kept, point.accuracy) for point in named]
        name_points(figure, axes, places, [point.label for point in named], size=7)


def _bytes(row: Row) -> float:
    return row.cells["kept_bytes"].mean


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

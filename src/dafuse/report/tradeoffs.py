"""Accuracy against what it costs: against speed, and against the bytes that are kept.

Accuracy against speed is Figure 1 of the DAF paper (arXiv 2601.21341). A point is a row of the
table that has the numbers: average accuracy, images per second in training (to the right) and in
prediction (the colour). What trains nothing, or in its first task alone, has no speed of training;
it stands at the right edge with a mark of its own. Runs whose training was replayed are not drawn:
how fast they would train is not known.

In accuracy against bytes, options that are words tell series apart, by colour and marker; options
that are numbers, and differ within a series, are written beside the points.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dafuse.report.drawing import COLOURS, INK, PALETTE, Drawing, NothingToDraw, name_points
from dafuse.report.measures import COLUMNS, human_bytes, human_number
from dafuse.report.runs import RunResult
from dafuse.report.settings import comparable, differing_options, group_runs, options_of
from dafuse.report.tables import UNKNOWN, Row, make_table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 3  # points; for fewer, the table is enough
LONGEST_NAME = 32
MEMORY_HEAD = ("Method", "Runs", "Average", "Final", "Kept", "Kept a class")
MARKERS = ("o", "s", "^", "D")


class SpeedPoint(NamedTuple):
    name: str
    accuracy: float
    training: float  # images per second; NaN if nothing is trained after the first task
    inference: float  # images per second

    @property
    def trained(self) -> bool:
        return not math.isnan(self.training)


def efficiency(runs: Iterable[RunResult]) -> Drawing:
    """Draw accuracy against the speeds of training and of prediction."""
    points = efficiency_points(runs)
    if not points:
        raise NothingToDraw(f"the figure needs {LEAST} methods with both speeds on the same data")
    return Drawing(
        lambda figure, letters: _draw_speeds(figure, points, letters),
        f"Average accuracy against speed: {'; '.join(map(_in_words, points))}.",
        on_page=(6.4, 4.2),
        height=5.2,
    )


def efficiency_caption(runs: list[RunResult]) -> str:
    """Say how to read the figure, and on which machines the speeds were measured."""
    edge = "What trains nothing after its first task stands at the right edge (▶). "
    points = efficiency_points(runs)
    drawn = {point.name for point in points}
    replayed = {row.name for row in make_table(r for r in runs if r.replayed).rows} - drawn
    left_out = f"Not drawn, because their training was replayed: {', '.join(sorted(replayed))}. "
    devices = sorted({run.provenance.device or "an unknown device" for run in runs})
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


def efficiency_points(runs: Iterable[RunResult]) -> list[SpeedPoint]:
    """Return what can be drawn: nothing if fewer than three have both speeds.

    Also nothing if accuracies do not compare, as of several data sets or streams.
    """
    runs = list(runs)
    if not comparable(runs):
        return []
    points = []
    for row in make_table(run for run in runs if not run.replayed).rows:
        numbers = [row.cells[key].mean for key in ("average", "train_speed", "inference_speed")]
        if not math.isnan(numbers[0]) and not math.isnan(numbers[2]):
            points.append(SpeedPoint(row.name, *numbers))
    return points if sum(point.trained for point in points) >= LEAST else []


def _in_words(point: SpeedPoint) -> str:
    speed = f"{human_number(point.training)} images/s"
    training = speed if point.trained else "nothing after its first task"
    return (
        f"{point.name} has {point.accuracy:.1f} %, trains {training}, "
        f"predicts {human_number(point.inference)} images/s"
    )


def _draw_speeds(figure: "Figure", points: list[SpeedPoint], label_size: float) -> None:
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
        alike = [point for point in points if point.trained == trained]
        drawn = axes.scatter(
            [point.training if trained else high for point in alike],
            [point.accuracy for point in alike],
            c=[point.inference for point in alike],
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
    """Return limits from min to max with room around, at least a factor of two apart."""
    low, high = min(values) / room, max(values) * room
    widen = math.sqrt(max(2 * low / high, 1.0))
    return low / widen, high * widen


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round numbers from low to high for a logarithmic axis, at least two and better three."""
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**k for k in decades for step in steps if low <= step * 10.0**k <= high]
        if len(ticks) >= 3:
            break
    return ticks, [f"{value:g}" for value in ticks]


class MemoryPoint(NamedTuple):
    series: str  # its options that are words
    label: str  # its options that are numbers
    kept: float  # bytes
    accuracy: float  # average, percent


def memory_rows(runs: Iterable[RunResult]) -> list[list[str]]:
    """Return the rows under `MEMORY_HEAD`, the smallest first.

    There are none for few settings, or for several data sets.
    """
    runs = list(runs)
    if len(memory_points(runs)) < LEAST:
        return []
    classes = [group.runs[0].seen_classes[-1] for group in group_runs(runs)]
    by_row = list(zip(make_table(runs).rows, classes, strict=True))
    by_row.sort(key=lambda one: _bytes(one[0]) if not math.isnan(_bytes(one[0])) else math.inf)
    return [
        [
            row.name,
            str(row.runs),
            *(show(row.cells[key], COLUMNS[key]) for key in ("average", "final", "kept_bytes")),
            UNKNOWN if math.isnan(_bytes(row)) else human_bytes(_bytes(row) / known),
        ]
        for row, known in by_row
    ]


def memory_points(runs: Iterable[RunResult]) -> list[MemoryPoint]:
    """Return the points to draw: settings whose accuracy and bytes are known, on the same data."""
    runs = list(runs)
    if not comparable(runs):
        return []
    varied = differing_options(runs)
    settings = [options_of(group.runs[0]) for group in group_runs(runs)]
    table = make_table(runs).rows
    words = [[own[key] for key in varied if isinstance(own.get(key), str)] for own in settings]
    series = [", ".join(own) or row.name for own, row in zip(words, table, strict=True)]
    points = []
    for name, own, row in zip(series, settings, table, strict=True):
        peers = [other for other, its in zip(settings, series, strict=True) if its == name]
        label = ", ".join(
            f"{key.removeprefix('method.')} {own[key]}"
            for key in varied
            if _is_number(own.get(key)) and len({str(peer.get(key)) for peer in peers}) > 1
        )
        kept, accuracy = _bytes(row), row.cells["average"].mean
        if kept > 0 and not math.isnan(accuracy):
            points.append(MemoryPoint(name, label, kept, accuracy))
    return points


def memory(runs: Iterable[RunResult]) -> Drawing:
    """Draw accuracy against the bytes kept beside the backbone."""
    points = memory_points(runs)
    if len(points) < LEAST:
        raise NothingToDraw(f"the figure needs {LEAST} settings on the same data and stream")
    return Drawing(lambda figure, _: _draw_memory(figure, points), height=6.4)


def _draw_memory(figure: "Figure", drawn: list[MemoryPoint]) -> None:
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

"""Figures of settings beside each other: their curves, one option swept, many of them ranked."""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dafuse.report.drawing import (
    LINES,
    PALETTE,
    Drawing,
    NothingToDraw,
    count_in_whole,
    moved_apart,
)
from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.settings import SeedGroup, comparable, differing_options, group_runs, options_of
from dafuse.report.tables import Row, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEPT = ("plasticity", "average", "final", "stability")
LEAST_VALUES = 3  # of a swept option
RANKED = ("average", "final")
LEAST_RANKED = 3  # settings; of fewer the table says it all
LINE, AROUND = 0.26, 1.1  # inches of a ranked setting, and above and below all of them


class Curve(NamedTuple):
    """A setting's accuracy over the seen classes: mean and std over its seeds."""

    name: str
    seen: list[int]
    mean: np.ndarray
    std: np.ndarray | None

    @property
    def end(self) -> float:
        return float(self.mean[-1])


def accuracy_curves(runs: Iterable[RunResult]) -> Drawing:
    """Draw the accuracy over all seen classes, a line per setting; seeds as mean and std."""
    groups = group_runs(runs)
    curves = [_curve(group, over_classes(groups)) for group in groups]
    unit = "classes" if over_classes(groups) else "points"
    in_words = "; ".join(
        f"{one.name} ends at {_percent(one.end)} % with {one.seen[-1]} {unit}" for one in curves
    )
    return Drawing(
        lambda figure, letters: _draw_curves(figure, groups, curves, letters),
        f"Accuracy over the number of seen {unit}: {in_words}.",
        on_page=(5.9, 3.4),
        letters=(9, 11),
    )


def over_classes(groups: list[SeedGroup]) -> bool:
    """Tell whether each task brings classes; in streams without tasks a point may bring none."""
    return all(run.config.stream == "tasks" for group in groups for run in group.runs)


def _curve(group: SeedGroup, by_classes: bool) -> Curve:
    curves = np.array([run.curve for run in group.runs])
    first = group.runs[0]
    return Curve(
        group.label,
        first.seen_classes if by_classes else list(range(1, len(first.matrix) + 1)),
        curves.mean(axis=0),
        curves.std(axis=0, ddof=1) if len(curves) > 1 else None,
    )


def _draw_curves(
    figure: "Figure", groups: list[SeedGroup], curves: list[Curve], label_size: float
) -> None:
    axes = figure.subplots()
    lines, lowest, highest = [], 100.0, 0.0
    for one, (colour, dashes) in zip(curves, _strokes(groups), strict=True):
        seen, mean, std = one.seen, one.mean, one.std
        if std is not None:
            axes.fill_between(seen, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
        marker = "o" if len(seen) <= 25 else ""
        lines += axes.plot(seen, mean, marker=marker, color=colour, linestyle=dashes, clip_on=False)
        known = mean[~np.isnan(mean)]
        if len(known):
            lowest, highest = min(lowest, known.min()), max(highest, known.max())
    bottom, top = 10 * np.floor((lowest - 3) / 10), 10 * np.ceil((highest + 2) / 10)
    axes.set_ylim(max(bottom, 0.0), min(max(top, bottom + 10), 100.0))
    axes.set_xlim(0, max(one.seen[-1] for one in curves))
    axes.set_xlabel("seen classes" if over_classes(groups) else "point of evaluation")
    axes.set_ylabel("accuracy (%)")
    count_in_whole(axes.xaxis)
    if len(groups) > 1:
        _name_lines(figure, axes, lines, curves, label_size)


def _strokes(groups: list[SeedGroup]) -> list[tuple[str, str]]:
    """A colour and a kind of line for each: of several streams, a line for each kind of stream."""
    streams = list(dict.fromkeys(group.runs[0].config.stream for group in groups))
    if len(streams) == 1:
        places = [divmod(number, len(PALETTE)) for number in range(len(groups))]
    else:
        learners = [
            json.dumps([group.runs[0].config.method, group.runs[0].config.options])
            for group in groups
        ]
        known = list(dict.fromkeys(learners))
        places = [
            (streams.index(group.runs[0].config.stream), known.index(learner))
            for group, learner in zip(groups, learners, strict=True)
        ]
    return [(PALETTE[k % len(PALETTE)], LINES[line % len(LINES)]) for line, k in places]


def _name_lines(
    figure: "Figure",
    axes: "Axes",
    lines: list[Any],
    curves: list[Curve],
    size: float,
) -> None:
    """Names at the ends of the lines where they fit there, else a legend below; best first."""
    values = [float(np.nan_to_num(one.end)) for one in curves]
    order = sorted(range(len(curves)), key=lambda i: (-curves[i].seen[-1], -values[i]))
    names = [f"{curves[i].name}  {_percent(curves[i].end)}" for i in order]
    same_end = len({one.seen[-1] for one in curves}) == 1
    if not same_end or len(curves) > 8 or max(len(one.name) for one in curves) > 22:
        columns = max(1, 66 // (max(map(len, names)) + 6))
        width, height = figure.get_size_inches()
        rows = -(-len(names) // columns)
        figure.set_size_inches(width, height + rows * size * 1.5 / 72)
        figure.legend(
            [lines[i] for i in order], names, loc="outside lower left", ncols=columns, fontsize=size
        )
        return
    bottom, top = axes.get_ylim()
    height_in_points = 0.82 * 72 * figure.get_size_inches()[1]
    gap = (top - bottom) * size * 1.35 / height_in_points
    heights = moved_apart([min(max(values[i], bottom), top) for i in order], gap)
    for i, name, place in zip(order, names, heights, strict=True):
        axes.annotate(
            name,
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=lines[i].get_color(),
            size=size,
            weight="bold",
        )


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}"


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
    return differing[0] if numbers and len(values) >= LEAST_VALUES else ""


def sweep(runs: Iterable[RunResult]) -> Drawing:
    """Draw the accuracies over the one number in which the runs differ, as over DAF's α and γ."""
    option, points = _swept(runs)
    if not points:
        raise NothingToDraw("the figure needs runs that differ in one option, a number, alone")
    in_words = "; ".join(
        f"{value:g}: {', '.join(f'{key} {row.cells[key].mean:.1f}' for key in SWEPT)}"
        for value, row in points
    )
    return Drawing(
        lambda figure, _: _draw_sweep(figure.subplots(), option.removeprefix("method."), points),
        f"Accuracies in percent over {option}. {in_words}.",
    )


def _swept(runs: Iterable[RunResult]) -> tuple[str, list[tuple[float, Row]]]:
    """The option, and the row of the table at each of its values; none where it cannot be drawn."""
    runs = list(runs)
    option = swept_option(runs)
    if not option:
        return "", []
    values = [options_of(group.runs[0])[option] for group in group_runs(runs)]
    rows = zip(values, make_table(runs).rows, strict=True)
    return option, sorted(rows, key=lambda point: point[0])


def _draw_sweep(axes: "Axes", option: str, points: list[tuple[float, Row]]) -> None:
    values = [value for value, _ in points]
    for key, colour, line in zip(SWEPT, PALETTE, LINES, strict=False):
        cells = [row.cells[key] for _, row in points]
        means = [cell.mean for cell in cells]
        stds = [0.0 if cell.std != cell.std else cell.std for cell in cells]
        label = COLUMNS[key].title
        if any(stds):
            axes.errorbar(
                values, means, stds, color=colour, ls=line, marker="o", capsize=2, label=label
            )
        else:
            axes.plot(values, means, color=colour, ls=line, marker="o", label=label)
    axes.set(xlabel=option, ylabel="accuracy (%)")
    axes.legend()


def ranking(runs: Iterable[RunResult]) -> Drawing:
    """Draw a line for each setting, the best on top: average and final accuracy."""
    rows = ranked(runs)
    if len(rows) < LEAST_RANKED:
        raise NothingToDraw(f"the figure needs {LEAST_RANKED} settings on the same data and stream")
    return Drawing(
        lambda figure, _: _draw_ranking(figure.subplots(), rows),
        height=AROUND + LINE * len(rows),
    )


def ranked(runs: Iterable[RunResult]) -> list[Row]:
    """The rows of the table that have an accuracy, the best average first; none of several data."""
    runs = list(runs)
    if not comparable(runs):
        return []
    known = [row for row in make_table(runs).rows if not math.isnan(row.cells["average"].mean)]
    return sorted(known, key=lambda row: -row.cells["average"].mean)


def _draw_ranking(axes: "Axes", rows: list[Row]) -> None:
    places = range(len(rows))
    for key, colour, filled in zip(RANKED, PALETTE, (True, False), strict=False):
        cells = [row.cells[key] for row in rows]
        stds = [0.0 if math.isnan(cell.std) else cell.std for cell in cells]
        axes.errorbar(
            [cell.mean for cell in cells],
            places,
            xerr=stds if any(stds) else None,
            fmt="o",
            color=colour,
            markerfacecolor=colour if filled else "white",
            markersize=6,
            label=COLUMNS[key].title,
        )
    axes.set_yticks(places, [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the best on top
    axes.set_xlabel("accuracy (%)")
    axes.figure.legend(loc="outside upper right", ncols=len(RANKED))

"""Figures of accuracy. Each is an SVG element, or "" where there is nothing to draw."""

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from dafuse.files import write_atomically
from dafuse.report.drawing import (
    LINES,
    PALETTE,
    PICTURE,
    canvas,
    count_in_whole,
    heat_map,
    number_cells,
    png,
    spread,
    svg,
    write_in_cells,
)
from dafuse.report.groups import Group, group_runs
from dafuse.report.runs import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def accuracy_curves(runs: Iterable[RunResult]) -> str:
    """Accuracy over all seen classes; several seeds as their mean and deviation."""
    groups = group_runs(runs)
    if all(len(run.curve) == 1 for group in groups for run in group.runs):
        return ""  # points make no curve
    with canvas(5.9, 3.4) as figure:
        ends = _draw_curves(figure, groups, label_size=9)
        unit = "classes" if over_classes(groups) else "points"
        told = "; ".join(
            f"{name} ends at {_percent(value)} % with {seen} {unit}" for name, value, seen in ends
        )
        return svg(figure, f"Accuracy over the number of seen {unit}: {told}.")


def curve_png(
    runs: Iterable[RunResult], path: str | os.PathLike[str], names: Iterable[str] = ()
) -> None:
    """The same curves as a picture 1200 pixels wide, under names of one's own if given."""
    with canvas(8, 4.4, **PICTURE) as figure:
        groups = group_runs(runs)
        for group, name in zip(groups, names, strict=False):
            group.name = name
        _draw_curves(figure, groups, label_size=11)
        picture = png(figure)
    write_atomically(path, picture)


def over_classes(groups: list[Group]) -> bool:
    """Whether classes come with each task; in streams without tasks a point may have none."""
    return all(run.stream == "tasks" for group in groups for run in group.runs)


def _draw_curves(
    figure: "Figure", groups: list[Group], label_size: float
) -> list[tuple[str, float, int]]:
    """Draws a line per group; gives each one's name, last accuracy and number of classes."""
    axes = figure.subplots()
    ends, lines, lowest, highest = [], [], 100.0, 0.0
    by_classes = over_classes(groups)
    for group, (colour, dashes) in zip(groups, _strokes(groups), strict=True):
        first = group.runs[0]
        seen = first.seen_classes if by_classes else list(range(1, len(first.matrix) + 1))
        curves = np.array([run.curve for run in group.runs])
        mean = curves.mean(axis=0)
        if len(curves) > 1:
            deviation = curves.std(axis=0, ddof=1)
            axes.fill_between(
                seen, mean - deviation, mean + deviation, color=colour, alpha=0.15, lw=0
            )
        marker = "o" if len(seen) <= 25 else ""
        lines += axes.plot(seen, mean, marker=marker, color=colour, linestyle=dashes, clip_on=False)
        ends.append((group.label, float(mean[-1]), seen[-1]))
        known = mean[~np.isnan(mean)]
        if len(known):
            lowest, highest = min(lowest, known.min()), max(highest, known.max())
    bottom, top = 10 * np.floor((lowest - 3) / 10), 10 * np.ceil((highest + 2) / 10)
    axes.set_ylim(max(bottom, 0.0), min(max(top, bottom + 10), 100.0))
    axes.set_xlim(0, max(seen for _, _, seen in ends))
    axes.set_xlabel("seen classes" if by_classes else "point of evaluation")
    axes.set_ylabel("accuracy (%)")
    count_in_whole(axes.xaxis)
    if len(groups) > 1:
        _name_lines(figure, axes, lines, ends, label_size)
    return ends


def _strokes(groups: list[Group]) -> list[tuple[str, str]]:
    """A colour and a kind of line for each: of several streams, a line for each kind of stream."""
    streams = list(dict.fromkeys(group.runs[0].stream for group in groups))
    if len(streams) == 1:
        places = [divmod(number, len(PALETTE)) for number in range(len(groups))]
    else:
        learners = [json.dumps(group.runs[0].config["method"]) for group in groups]
        known = list(dict.fromkeys(learners))
        places = [
            (streams.index(group.runs[0].stream), known.index(learner))
            for group, learner in zip(groups, learners, strict=True)
        ]
    return [(PALETTE[k % len(PALETTE)], LINES[line % len(LINES)]) for line, k in places]


def _name_lines(
    figure: "Figure",
    axes: "Axes",
    lines: list[Any],
    ends: list[tuple[str, float, int]],
    size: float,
) -> None:
    """Names at the ends of the lines where they fit there, else a legend below; best first."""
    values = [float(np.nan_to_num(value)) for _, value, _ in ends]
    order = sorted(range(len(ends)), key=lambda i: (-ends[i][2], -values[i]))
    names = [f"{ends[i][0]}  {_percent(ends[i][1])}" for i in order]
    same_end = len({seen for _, _, seen in ends}) == 1
    if not same_end or len(ends) > 8 or max(len(name) for name, _, _ in ends) > 22:
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
    heights = spread([min(max(values[i], bottom), top) for i in order], gap)
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


def accuracy_matrix(run: RunResult) -> str:
    """A[t, j]: the accuracy on task j after learning task t."""
    values = run.matrix.accuracies()
    if len(values) == 1 or np.isnan(values).all():
        return ""
    with canvas(5.4, 3.9) as figure:
        axes = figure.subplots()
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        low = min(low, high - 1)
        heat_map(axes, values, low, high, "accuracy (%)")
        if len(values) <= 12:
            write_in_cells(axes, values, (low + high) / 2)
        tasks = list(range(1, len(values) + 1))
        number_cells(axes, tasks, tasks)
        in_tasks = run.step == "task"
        axes.set_xlabel("tested on task" if in_tasks else "tested on classes new at point")
        axes.set_ylabel("after learning task" if in_tasks else "at point")
        return svg(
            figure,
            f"Accuracy matrix of {len(values)} {run.step}s: the accuracy of each after each later "
            f"one, from {np.nanmin(values):.1f} % to {np.nanmax(values):.1f} %.",
        )


def most_confused(counts: np.ndarray, most: int = 12) -> list[int]:
    """The classes of the pairs that are confused most often, pair by pair, in stream order."""
    both_ways = np.triu(counts + counts.T, 1)
    chosen: set[int] = set()
    for pair in np.argsort(-both_ways, axis=None, kind="stable"):
        a, b = map(int, np.unravel_index(pair, both_ways.shape))
        if not both_ways[a, b] or len(chosen | {a, b}) > most:
            break
        chosen |= {a, b}
    return sorted(chosen)


def confusion(run: RunResult) -> str:
    """Who is taken for whom, among the classes that are confused most with each other."""
    counts = np.array(run.results.get("confusion") or np.zeros((0, 0)), dtype=float)
    chosen = most_confused(counts) if counts.ndim == 2 and len(counts) > 1 else []
    if not chosen:
        return ""
    names = [run.results["classes"][c] for c in chosen]
    names = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    images = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = (100 * counts / images)[np.ix_(chosen, chosen)]
    with canvas(5.4, 4.3) as figure:
        axes = figure.subplots()
        wrong = np.where(np.eye(len(chosen), dtype=bool) | (shares == 0), np.nan, shares)
        worst = float(np.nanmax(wrong))
        heat_map(axes, wrong, 0, worst, "taken for another class (%)")
        write_in_cells(axes, wrong, worst / 2)
        for k, right in enumerate(np.diag(shares)):
            axes.text(k, k, f"{right:.0f}", ha="center", va="center", size=8)
        axes.set_xticks(range(len(chosen)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(chosen)), names)
        axes.set(xlabel="predicted", ylabel="true")
        i, j = map(int, np.unravel_index(np.nanargmax(wrong), wrong.shape))
        return svg(
            figure,
            f"Confusion of {len(chosen)} classes. Most often, {worst:.0f} % of the images "
            f"of {names[i]} are taken for {names[j]}.",
        )

"""Figures of what was measured of DAF's approximations. "" where nothing was."""

import math
import os
from typing import TYPE_CHECKING, Any

from dafuse.files import write_atomically
from dafuse.report.drawing import INK, LINES, PALETTE, PICTURE, NothingToDraw, canvas, png, svg
from dafuse.report.measurements import FILE, MODELS, readable_measurement
from dafuse.report.runs import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 4
MARKERS = ("o", "s", "^", "D")  # of the adapter's four tensors


def loss_along_path(run: RunResult) -> str:
    """The true loss from θ_t to θ*_t and what the parabolas make of it, for a few tasks."""
    paths = _paths(run)
    if not paths:
        return ""
    with canvas(6.4, 0.7 + 2.2 * math.ceil(len(paths) / 2)) as figure:
        _draw_paths(figure, paths)
        told = "; ".join(
            f"in task {task} the loss changes by {_change(path, 'true')[-1]:+.3g}, by the Fisher "
            f"diagonal {_change(path, 'fisher')[-1]:+.3g}"
            for task, path in paths
        )
        return svg(figure, f"Loss along the path from the task's to the fused adapter: {told}.")


def path_png(run: RunResult, path: str | os.PathLike[str]) -> None:
    """The same figure as a picture 1200 pixels wide."""
    paths = _paths(run)
    if not paths:
        raise NothingToDraw(f"{run.folder} has no {FILE} with a path to draw")
    with canvas(8, 0.8 + 2.7 * math.ceil(len(paths) / 2), **PICTURE) as figure:
        _draw_paths(figure, paths)
        picture = png(figure)
    write_atomically(path, picture)


def fisher_against_hessian(run: RunResult) -> str:
    """Entries of the last measured task: Fisher to the right, exact second derivative upwards."""
    found = readable_measurement(run.folder)
    if found is None or not found["tasks"]:
        return ""
    task = found["tasks"][-1]
    fisher, exact = task["sampled"]["fisher"], task["sampled"]["exact"]
    pairs = {
        tensor: [(f, h) for f, h in zip(fisher[tensor], exact[tensor], strict=True) if f and h]
        for tensor in fisher
    }
    drawn = sum(map(len, pairs.values()))
    if not drawn:
        return ""
    with canvas(5.4, 4.2) as figure:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="Fisher diagonal", ylabel="|Hessian diagonal|")
        for tensor, colour, marker in zip(pairs, PALETTE, MARKERS, strict=False):
            for positive, filling in ((True, "full"), (False, "none")):
                here = [(f, abs(h)) for f, h in pairs[tensor] if (h > 0) == positive]
                label = tensor if positive else ""
                xs, ys = [f for f, _ in here], [h for _, h in here]
                axes.plot(xs, ys, marker, color=colour, fillstyle=filling, label=label)
        everything = [pair for several in pairs.values() for pair in several]
        limits = [_decades([abs(pair[k]) for pair in everything]) for k in (0, 1)]
        ends = max(low for low, _ in limits), min(high for _, high in limits)
        if ends[0] < ends[1]:
            axes.plot(ends, ends, color=INK, lw=0.8, ls="--", label="equal")
        for axis, place, (low, high) in (
            (axes.xaxis, axes.set_xlim, limits[0]),
            (axes.yaxis, axes.set_ylim, limits[1]),
        ):
            place(low, high)
            axis.set_major_formatter(lambda value, _: f"{value:.0e}")
        axes.minorticks_off()
        axes.legend(loc="upper left")
        numbers = task["agreement"]["fisher_exact"]["all"]
        return svg(
            figure,
            f"Fisher diagonal against the exact Hessian diagonal, {drawn} entries of task "
            f"{task['task'] + 1}: rank correlation {numbers['rank_correlation']:.2f}, "
            f"ratio of sums {numbers['ratio_of_sums']:.3g}.",
        )


def _decades(sizes: list[float]) -> tuple[float, float]:
    """From the largest down to the least, but no further than ten decades: below is nothing."""
    largest = max(sizes)
    return max(min(sizes), largest * 1e-10) / 3, largest * 3


def _paths(run: RunResult) -> list[tuple[int, dict[str, list[float]]]]:
    """Task number and path, of the first few and the last measured tasks that have one."""
    found: dict[str, Any] = readable_measurement(run.folder) or {"tasks": []}
    paths = [(task["task"] + 1, task["path"]) for task in found["tasks"] if task["path"]]
    return paths if len(paths) <= MOST_PANELS else [*paths[: MOST_PANELS - 1], paths[-1]]


def _change(path: dict[str, list[float]], model: str) -> list[float]:
    return [value - path["true"][0] for value in path[model]]


def _draw_paths(figure: "Figure", paths: list[tuple[int, dict[str, list[float]]]]) -> None:
    columns = min(2, len(paths))
    panels = figure.subplots(math.ceil(len(paths) / 2), columns, squeeze=False).flatten()
    for axes, (task, path) in zip(panels, paths, strict=False):
        _draw_path(axes, path)
        axes.set_title(f"task {task}, loss {path['true'][0]:.3g}")
    for axes in panels[len(paths) :]:
        axes.set_visible(False)
    for axes in panels[: len(paths)][-columns:]:
        axes.set_xlabel("share of the path from θ_t to θ*_t")
    for axes in panels[::columns]:
        axes.set_ylabel("change of the loss")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2)


def _draw_path(axes: "Axes", path: dict[str, list[float]]) -> None:
    """A parabola may leave the axes, whose limits are those of the others."""
    inside = [value for model in ("true", "fisher", "hessian") for value in _change(path, model)]
    for number, (model, name) in enumerate(MODELS.items()):
        values = _change(path, model)
        if model == "true":
            axes.plot(path["shares"], values, color=INK, marker="o", label=name)
        else:
            colour = PALETTE[number - 1]
            label = f"parabola: {name}"
            axes.plot(path["shares"], values, color=colour, ls=LINES[number - 1], label=label)
    room = 0.3 * (max(inside) - min(inside)) or 1e-9
    axes.set_ylim(min(inside) - room, max(inside) + room)

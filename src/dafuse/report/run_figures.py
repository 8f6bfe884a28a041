"""Figures of one run: accuracy, confusion, fusion, bound, time, loss.

Each raises `NothingToDraw` if the run lacks its numbers.
"""

from typing import TYPE_CHECKING

import numpy as np

from dafuse.report.drawing import (
    INK,
    PALETTE,
    Drawing,
    NothingToDraw,
    count_in_whole,
    heat_map,
    number_cells,
    write_in_cells,
)
from dafuse.report.runs import RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# in the order of a task
PHASES = ("train", "fisher", "fuse", "statistics", "align", "observe", "evaluate")


def accuracy_matrix(run: RunResult) -> Drawing:
    """A[t, j]: the accuracy on task j after learning task t."""
    values = run.matrix.accuracies()
    if len(values) == 1 or np.isnan(values).all():
        raise NothingToDraw("the figure needs a run of several tested tasks")

    worst, best = float(np.nanmin(values)), float(np.nanmax(values))
    low = min(worst, best - 1)

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        heat_map(axes, values, low, best, "accuracy (%)")
        if len(values) <= 12:
            write_in_cells(axes, values, (low + best) / 2)
        tasks = list(range(1, len(values) + 1))
        number_cells(axes, tasks, tasks)
        in_tasks = run.step == "task"
        axes.set_xlabel("tested on task" if in_tasks else "tested on classes new at point")
        axes.set_ylabel("after learning task" if in_tasks else "at point")

    return Drawing(
        draw,
        f"Accuracy matrix of {len(values)} {run.step}s: the accuracy of each after each later "
        f"one, from {worst:.1f} % to {best:.1f} %.",
        on_page=(5.4, 3.9),
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


def confusion(run: RunResult) -> Drawing:
    """Draw which classes are taken for which, among those confused most with each other."""
    counts = np.array(run.confusion, dtype=float)
    chosen = most_confused(counts) if len(counts) > 1 else []
    if not chosen:
        raise NothingToDraw("the figure needs images taken for another class")
    names = [run.classes[c] for c in chosen]
    names = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    images = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = (100 * counts / images)[np.ix_(chosen, chosen)]
    wrong = np.where(np.eye(len(chosen), dtype=bool) | (shares == 0), np.nan, shares)
    worst = float(np.nanmax(wrong))
    i, j = map(int, np.unravel_index(np.nanargmax(wrong), wrong.shape))

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        heat_map(axes, wrong, 0, worst, "taken for another class (%)")
        write_in_cells(axes, wrong, worst / 2)
        for k, right in enumerate(np.diag(shares)):
            axes.text(k, k, f"{right:.0f}", ha="center", va="center", size=8)
        axes.set_xticks(range(len(chosen)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(chosen)), names)
        axes.set(xlabel="predicted", ylabel="true")

    return Drawing(
        draw,
        f"Confusion of {len(chosen)} classes. Most often, {worst:.0f} % of the images "
        f"of {names[i]} are taken for {names[j]}.",
        on_page=(5.4, 4.3),
    )


def beta_per_layer(run: RunResult) -> Drawing:
    """DAF's coefficient: its median per layer and task, and its spread after the last task."""
    recorded = run.diagnosed(lambda measured: measured.beta)
    layers = sorted({layer for _, beta in recorded for layer in beta})
    if not layers:
        raise NothingToDraw("the figure needs a run that fuses adapters")
    median = np.array(
        [[beta[k]["50"] if k in beta else np.nan for _, beta in recorded] for k in layers]
    )
    task, last = recorded[-1]
    fused = [layer for layer in layers if layer in last]
    five, quarter, median_of_layer, three_quarters, high = (
        np.array([last[layer][q] for layer in fused]) for q in ("5", "25", "50", "75", "95")
    )

    def draw(figure: "Figure", _: float) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        heat_map(left, median, 0, 0.5, "")
        number_cells(left, layers, [t for t, _ in recorded])
        left.set(title="median β", xlabel="task", ylabel="layer")
        rows = [layers.index(layer) for layer in fused]
        right.barh(rows, high - five, left=five, color=PALETTE[5], alpha=0.45, height=0.75, lw=0)
        right.barh(
            rows, three_quarters - quarter, left=quarter, color=PALETTE[0], height=0.75, lw=0
        )
        right.plot(median_of_layer, rows, "|", color=PALETTE[4], markersize=9, markeredgewidth=2)
        right.set(title=f"spread of β in task {task}", xlabel="β", xlim=(0, 0.5))
        right.set_ylim(len(layers) - 0.5, -0.5)
        right.set_yticks([])

    return Drawing(
        draw,
        f"Fusion coefficient β by layer and task. In task {task} the layers' medians lie "
        f"between {median_of_layer.min():.3f} and {median_of_layer.max():.3f}.",
        on_page=(5.4, 3.6),
    )


def fusion_diagnosis(run: RunResult) -> Drawing:
    """Draw what the fusion did in each task: clipping, the gradient's weight, the movement."""
    low = run.diagnosed(lambda measured: measured.clipped_low)
    high = run.diagnosed(lambda measured: measured.clipped_high)
    moved = run.diagnosed(lambda measured: measured.moved)
    panels = {
        "share of β clipped (%)": {
            "at its low end": [(t, 100 * v) for t, v in low],
            "at its high end": [(t, 100 * v) for t, v in high],
        },
        "median |g / D|": {"": run.diagnosed(lambda measured: measured.gradient_over_displacement)},
        "movement of the global adapter, relative (%)": {"": [(t, 100 * v) for t, v in moved]},
    }
    return _panels(panels, "Fusion over tasks")


def bound_terms(run: RunResult) -> Drawing:
    """The terms of the paper's bound, in each task."""
    panels = {
        "empirical risk": {"": run.diagnosed(lambda measured: measured.empirical_risk)},
        "squared distance from": {
            "the initial adapter": run.diagnosed(lambda measured: measured.init_sq_distance),
            "the global adapter": run.diagnosed(lambda measured: measured.global_sq_distance),
        },
    }
    return _panels(panels, "Terms of the bound over tasks")


def _panels(panels: dict[str, dict[str, list[tuple[int, float]]]], label: str) -> Drawing:
    """Small figures above each other with one axis of tasks; those without values are dropped."""
    drawn = {title: lines for title, lines in panels.items() if any(lines.values())}
    if not drawn:
        raise NothingToDraw("the figure needs numbers of the fusion")
    in_words = "; ".join(
        f"{title} {name}".strip() + f" ends at {points[-1][1]:.3g}"
        for title, lines in drawn.items()
        for name, points in lines.items()
        if points
    )

    def draw(figure: "Figure", _: float) -> None:
        all_axes = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, lines) in zip(all_axes, drawn.items(), strict=True):
            for number, (name, points) in enumerate(lines.items()):
                if not points:
                    continue
                tasks, values = zip(*points, strict=True)
                axes.plot(tasks, values, "o-", color=PALETTE[number], label=name)
            axes.set_title(title)
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
            if len(lines) > 1:
                axes.legend(
                    ncols=2,
                    loc="lower right",
                    bbox_to_anchor=(1, 0.96),
                    borderpad=0.2,
                    handlelength=1.4,
                )
        all_axes[-1].set_xlabel("task")
        count_in_whole(all_axes[-1].xaxis)

    return Drawing(
        draw,
        f"{label}: {in_words}.",
        on_page=(5.4, 0.5 + 1.3 * len(drawn)),
    )


def seconds_per_phase(run: RunResult) -> Drawing:
    """A bar for each task, made of its phases."""
    spent = [task.seconds for task in run.tasks]
    extra = sorted({phase for seconds in spent for phase in seconds} - set(PHASES))
    phases = [p for p in (*PHASES, *extra) if any(seconds.get(p) for seconds in spent)]
    if not phases:
        raise NothingToDraw("the figure needs a run that took time")

    heights = {phase: np.array([seconds.get(phase, 0.0) for seconds in spent]) for phase in phases}
    total = sum(heights.values(), np.zeros(len(spent)))

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        tasks, floor = np.arange(1, len(spent) + 1), np.zeros(len(spent))
        for number, (phase, values) in enumerate(heights.items()):
            colour = PALETTE[number] if number < len(PALETTE) else INK
            axes.bar(tasks, values, bottom=floor, color=colour, label=phase, width=0.8, lw=0)
            floor = floor + values
        axes.grid(False, axis="x")
        axes.set_xlim(0.4, max(len(spent), 4) + 0.6)
        axes.set(xlabel="task", ylabel="seconds")
        count_in_whole(axes.xaxis)
        axes.figure.legend(loc="outside upper left", ncols=6, columnspacing=1, handlelength=1)

    return Drawing(
        draw,
        f"Seconds per phase and task: {total.sum():.0f} s in all, "
        f"{total[0]:.1f} s in the first task and {total[-1]:.1f} s in the last.",
    )


def training_loss(run: RunResult) -> Drawing:
    """The mean loss of each epoch, task after task."""
    losses = [(t, task.loss) for t, task in enumerate(run.tasks) if task.loss]
    if not losses:
        raise NothingToDraw("the figure needs losses of a training")

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        for t, loss in losses:  # each task's epochs around its number
            marker = "o" if len(loss) == 1 else ""
            when = t + 0.5 + (np.arange(len(loss)) + 0.5) / len(loss)
            axes.plot(when, loss, marker=marker, color=PALETTE[0])
        axes.set(xlabel="task, with its epochs", ylabel="mean training loss")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0.5, len(run.tasks) + 0.5)
        count_in_whole(axes.xaxis)

    first, last = losses[0][1], losses[-1][1]
    return Drawing(
        draw,
        f"Training loss per epoch: from {first[0]:.3g} to {first[-1]:.3g} in the first task, "
        f"from {last[0]:.3g} to {last[-1]:.3g} in the last.",
    )

"""Figures of what went on inside a run: fusion, bound, time, loss. "" where nothing is recorded."""

import numpy as np

from dafuse.report.drawing import INK, PALETTE, canvas, count_in_whole, heat_map, number_cells, svg
from dafuse.report.runs import RunResult

# in the order of a task
PHASES = ("train", "fisher", "fuse", "statistics", "align", "observe", "evaluate")


def beta_per_layer(run: RunResult) -> str:
    """DAF's coefficient: its median per layer and task, and its spread after the last task."""
    recorded = [
        (t, {b["layer"]: b["quantiles"] for b in beta if b["quantiles"]})
        for t, beta in run.diagnosed("beta")
    ]
    layers = sorted({layer for _, beta in recorded for layer in beta})
    if not layers:
        return ""
    median = np.array(
        [[beta[k]["50"] if k in beta else np.nan for _, beta in recorded] for k in layers]
    )
    task, last = recorded[-1]
    here = [layer for layer in layers if layer in last]
    five, quarter, half, most, high = (
        np.array([last[layer][q] for layer in here]) for q in ("5", "25", "50", "75", "95")
    )
    with canvas(5.4, 3.6) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        heat_map(left, median, 0, 0.5, "")
        number_cells(left, layers, [t for t, _ in recorded])
        left.set(title="median β", xlabel="task", ylabel="layer")
        rows = [layers.index(layer) for layer in here]
        right.barh(rows, high - five, left=five, color=PALETTE[5], alpha=0.45, height=0.75, lw=0)
        right.barh(rows, most - quarter, left=quarter, color=PALETTE[0], height=0.75, lw=0)
        right.plot(half, rows, "|", color=PALETTE[4], markersize=9, markeredgewidth=2)
        right.set(title=f"spread of β in task {task}", xlabel="β", xlim=(0, 0.5))
        right.set_ylim(len(layers) - 0.5, -0.5)
        right.set_yticks([])
        return svg(
            figure,
            f"Fusion coefficient β by layer and task. In task {task} the layers' medians lie "
            f"between {half.min():.3f} and {half.max():.3f}.",
        )


def fusion_diagnosis(run: RunResult) -> str:
    """What the fusion did in each task: clipping, the gradient's weight, the movement."""
    moved = run.diagnosed("moved")
    panels = {
        "share of β clipped (%)": {
            "at its low end": [(t, 100 * v) for t, v in run.diagnosed("clipped_low")],
            "at its high end": [(t, 100 * v) for t, v in run.diagnosed("clipped_high")],
        },
        "median |g / D|": {"": run.diagnosed("median_abs_gradient_over_displacement")},
        "movement of the global adapter, relative (%)": {
            "": [(t, 100 * v["relative"]) for t, v in moved if v.get("relative") is not None]
        },
    }
    return _panels(panels, "Fusion over tasks")


def bound_terms(run: RunResult) -> str:
    """The terms of the paper's bound, in each task."""
    terms = run.diagnosed("bound")

    def over_tasks(key: str) -> list[tuple[int, float]]:
        return [(t, value[key]) for t, value in terms if value.get(key) is not None]

    panels = {
        "empirical risk": {"": over_tasks("empirical_risk")},
        "squared distance from": {
            "the initial adapter": over_tasks("init_sq_distance"),
            "the global adapter": over_tasks("global_sq_distance"),
        },
    }
    return _panels(panels, "Terms of the bound over tasks")


def _panels(panels: dict[str, dict[str, list[tuple[int, float]]]], label: str) -> str:
    """Small figures above each other with one axis of tasks; those without values are left out."""
    drawn = {title: lines for title, lines in panels.items() if any(lines.values())}
    if not drawn:
        return ""
    with canvas(5.4, 0.5 + 1.3 * len(drawn)) as figure:
        all_axes = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        told = []
        for axes, (title, lines) in zip(all_axes, drawn.items(), strict=True):
            for number, (name, points) in enumerate(lines.items()):
                if not points:
                    continue
                tasks, values = zip(*points, strict=True)
                axes.plot(tasks, values, "o-", color=PALETTE[number], label=name)
                told.append(f"{title} {name}".strip() + f" ends at {values[-1]:.3g}")
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
        return svg(figure, f"{label}: {'; '.join(told)}.")


def seconds_per_phase(run: RunResult) -> str:
    spent = [task["seconds"] for task in run.tasks]
    extra = sorted({phase for seconds in spent for phase in seconds} - set(PHASES))
    phases = [p for p in (*PHASES, *extra) if any(seconds.get(p) for seconds in spent)]
    if not phases:
        return ""
    with canvas(5.4, 3.3) as figure:
        axes = figure.subplots()
        tasks, floor = np.arange(1, len(spent) + 1), np.zeros(len(spent))
        for number, phase in enumerate(phases):
            values = np.array([seconds.get(phase, 0.0) for seconds in spent])
            colour = PALETTE[number] if number < len(PALETTE) else INK
            axes.bar(tasks, values, bottom=floor, color=colour, label=phase, width=0.8, lw=0)
            floor += values
        axes.grid(False, axis="x")
        axes.set_xlim(0.4, max(len(spent), 4) + 0.6)
        axes.set(xlabel="task", ylabel="seconds")
        count_in_whole(axes.xaxis)
        axes.figure.legend(loc="outside upper left", ncols=6, columnspacing=1, handlelength=1)
        return svg(
            figure,
            f"Seconds per phase and task: {floor.sum():.0f} s in all, "
            f"{floor[0]:.1f} s in the first task and {floor[-1]:.1f} s in the last.",
        )


def training_loss(run: RunResult) -> str:
    losses = [(t, task["loss"]) for t, task in enumerate(run.tasks) if task.get("loss")]
    if not losses:
        return ""
    with canvas(5.4, 3.3) as figure:
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
        return svg(
            figure,
            f"Training loss per epoch: from {first[0]:.3g} to {first[-1]:.3g} in the first task, "
            f"from {last[0]:.3g} to {last[-1]:.3g} in the last.",
        )

"""Tables and figures of what was measured of DAF's approximations at a recorded run.

`experiments.approximations` says how it is measured; here is what its numbers are called.
"""

import math
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafuse.errors import DafuseError
from dafuse.report.drawing import INK, LINES, PALETTE, Drawing, NothingToDraw
from dafuse.report.runs import RunResult
from dafuse.sealed import read_sealed
from dafuse.shapes import ANYTHING, COUNT, NUMBER, Each, JsonRecord, Keys, Maybe, require_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "approximations.json"
FORMAT = 1  # the one that is written, and read
COMPARED = {  # which numbers stand for which, and what they are called
    "fisher_signs": "Fisher for Hessian (random signs)",
    "fisher_exact": "Fisher for Hessian (exact)",
    "signs_exact": "random signs for exact Hessian",
    "rule_exact": "α r + 1 (Eq. 13) for Hessian (exact)",
    "batch_sample": "Fisher by batches for by samples",
}
MODELS = {  # of the loss along the path: itself, and parabolas by what they bend with
    "true": "true loss",
    "fisher": "Fisher diagonal",
    "diagonal": "Hessian diagonal",
    "hessian": "whole Hessian",
    "rule": "α r + 1 (Eq. 13)",
}
AGREEMENT = (
    *("Compared", "Part", "Entries", "Rank correlation", "Cosine", "Ratio of sums"),
    "Negative (%)",
)
AGREES = ("rank_correlation", "cosine", "ratio_of_sums", "negative")
TASK = Keys(
    {
        "task": COUNT,
        "agreement": Keys(
            dict.fromkeys(COMPARED, Each(Keys({"entries": COUNT, **dict.fromkeys(AGREES, NUMBER)})))
        ),
        "path": Maybe(Each([NUMBER])),
    },
    {
        "images": COUNT,
        "sampled": Keys(dict.fromkeys(("fisher", "exact"), Each([NUMBER]))),
        "seconds": NUMBER,
    },
)
MEASURED = Keys(
    {
        "options": Keys(dict.fromkeys(("images", "probes", "coordinates"), COUNT)),
        "planned": [COUNT],
        "tasks": [TASK],
    },
    {"provenance": Each(ANYTHING)},
)
MOST_PANELS = 4
MARKERS = ("o", "s", "^", "D")  # of the adapter's four tensors
Row = list[str]


@dataclass(frozen=True)
class MeasuredTask(JsonRecord):
    """The measurement at one task."""

    task: int  # 0-based index
    images: int = 0
    # of each of `COMPARED`, for the adapter and each of its tensors: entries, and `AGREES`
    agreement: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    # shares of the way to θ*_t, and the loss there by each of `MODELS`; None where they are equal
    path: dict[str, list[float]] | None = None
    # by what was measured, some entries of each tensor
    sampled: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class MeasuredTasks:
    """All that was measured at a run's record so far."""

    options: dict[str, int]  # those of `experiments.declared.MeasureOptions`
    planned: list[int]  # 0-based indices of tasks
    provenance: dict[str, Any]
    tasks: list[MeasuredTask] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **vars(self), "tasks": [task.as_json() for task in self.tasks]}


def read_measurement(folder: str | os.PathLike[str]) -> MeasuredTasks | None:
    """Return what was measured at a run's record so far, if anything."""
    path = Path(folder) / FILE
    measurement = read_measured(path)
    if measurement is None:
        return None
    missing = {"options", "planned", "tasks"} - measurement.keys()
    if missing:
        raise DafuseError(f"{path} lacks {', '.join(sorted(missing))}; delete it to measure again")
    try:
        require_shape(measurement, MEASURED)
        _require_alike(measurement["tasks"])
    except ValueError as error:
        raise DafuseError(f"{path} is damaged: {error}; delete it to measure again") from None
    tasks = [MeasuredTask.parsed(task) for task in measurement["tasks"]]
    options, planned = measurement["options"], measurement["planned"]
    return MeasuredTasks(options, planned, measurement.get("provenance", {}), tasks)


def _require_alike(tasks: list[dict[str, Any]]) -> None:
    """Refuse tasks with other measured parts than the first, and paths without an end."""
    for task in tasks:
        for key in COMPARED:
            if task["agreement"][key].keys() != tasks[0]["agreement"][key].keys():
                raise ValueError(f"{key} was measured of other parts at each task")
        if path := task["path"]:
            lengths = {len(path.get(name, ())) for name in ("shares", *MODELS)}
            if len(lengths) > 1 or 0 in lengths:
                raise ValueError("a path lacks the number of some share")


def read_measured(path: Path) -> dict[str, Any] | None:
    """Return the measurement in this file, if there is one; refuse one of another version."""
    if not path.is_file():
        return None
    measurement = read_sealed(path, "delete it to measure again", path.parent)
    if not isinstance(measurement, dict) or measurement.get("format") != FORMAT:
        raise DafuseError(f"{path} is not of this version of dafuse; delete it to measure again")
    return measurement


def readable_measurement(folder: str | os.PathLike[str]) -> MeasuredTasks | None:
    """Return what `read_measurement` does, and None for damage: a report goes on without it."""
    try:
        return read_measurement(folder)
    except DafuseError:
        return None


def damages(folders: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Say what keeps measurements in these folders from being read."""
    for folder in folders:
        try:
            read_measurement(folder)
        except DafuseError as error:
            yield str(error)


def how_measured(measurement: MeasuredTasks) -> str:
    """Say on what was measured, and what is missing."""
    numbers, options = [str(task.task + 1) for task in measurement.tasks], measurement.options
    missing = len(measurement.planned) - len(numbers)
    return (
        f"Measured at the adapters of task{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}, "
        f"on at most {options['images']} training images of each, {options['probes']} vectors of "
        f"random signs and {options['coordinates']} exact entries for each tensor."
        + (f" Missing: {missing} of {len(measurement.planned)} tasks." if missing else "")
    )


def agreement_rows(measurement: MeasuredTasks) -> list[Row]:
    """Return the rows under `AGREEMENT`: mean over the tasks, and range if there are several."""
    rows = []
    for key, name in COMPARED.items():
        parts = [task.agreement[key] for task in measurement.tasks]
        for part in parts[0] if parts else ():
            values = [numbers[part] for numbers in parts]
            rows.append(
                [
                    name,
                    part,
                    f"{values[0]['entries']}",
                    _over(v["rank_correlation"] for v in values),
                    _over(v["cosine"] for v in values),
                    _over(v["ratio_of_sums"] for v in values),
                    _over((100 * v["negative"] for v in values), "{:.0f}"),
                ]
            )
    return rows


def path_rows(measurement: MeasuredTasks) -> tuple[Row, list[Row]]:
    """Head and rows: what each parabola makes of the change of the loss from θ_t to θ*_t."""
    paths = [(task.task + 1, task.path) for task in measurement.tasks if task.path]
    head = ["Task", "Loss at θ_t", "at θ*_t", *(f"by {MODELS[m]}" for m in list(MODELS)[1:])]
    rows = [
        [str(number), f"{path['true'][0]:.4g}", *(f"{path[model][-1]:.4g}" for model in MODELS)]
        for number, path in paths
    ]
    return head, rows


def _over(values: Iterable[float], form: str = "{:.3g}") -> str:
    """Return the mean (min to max) of the known values."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    mean = form.format(statistics.fmean(known))
    if len(known) == 1:
        return mean
    return f"{mean} ({form.format(min(known))} to {form.format(max(known))})"


def loss_along_path(run: RunResult) -> Drawing:
    """Draw the true loss from θ_t to θ*_t and what the parabolas make of it, for a few tasks."""
    paths = _paths(run)
    if not paths:
        raise NothingToDraw(f"{run.folder} has no {FILE} with a path to draw")
    in_words = "; ".join(
        f"in task {task} the loss changes by {_change(path, 'true')[-1]:+.3g}, by the Fisher "
        f"diagonal {_change(path, 'fisher')[-1]:+.3g}"
        for task, path in paths
    )
    rows = math.ceil(len(paths) / 2)
    return Drawing(
        lambda figure, _: _draw_paths(figure, paths),
        f"Loss along the path from the task's to the fused adapter: {in_words}.",
        on_page=(6.4, 0.7 + 2.2 * rows),
        height=0.8 + 2.7 * rows,
    )


def fisher_against_hessian(run: RunResult) -> Drawing:
    """Entries of the last measured task: Fisher to the right, exact second derivative upwards."""
    results = readable_measurement(run.folder)
    if results is None or not results.tasks:
        raise NothingToDraw(f"{run.folder} has no {FILE} with a measured task")
    task = results.tasks[-1]
    fisher, exact = task.sampled["fisher"], task.sampled["exact"]
    pairs = {
        tensor: [(f, h) for f, h in zip(fisher[tensor], exact[tensor], strict=True) if f and h]
        for tensor in fisher
    }
    drawn = sum(map(len, pairs.values()))
    if not drawn:
        raise NothingToDraw("the figure needs second derivatives that are not zero")

    def draw(figure: "Figure", _: float) -> None:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="Fisher diagonal", ylabel="|Hessian diagonal|")
        for tensor, colour, marker in zip(pairs, PALETTE, MARKERS, strict=False):
            for positive, filling in ((True, "full"), (False, "none")):
                alike = [(f, abs(h)) for f, h in pairs[tensor] if (h > 0) == positive]
                label = tensor if positive else ""
                xs, ys = [f for f, _ in alike], [h for _, h in alike]
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

    numbers = task.agreement["fisher_exact"]["all"]
    return Drawing(
        draw,
        f"Fisher diagonal against the exact Hessian diagonal, {drawn} entries of task "
        f"{task.task + 1}: rank correlation {numbers['rank_correlation']:.2f}, "
        f"ratio of sums {numbers['ratio_of_sums']:.3g}.",
        on_page=(5.4, 4.2),
    )


def _decades(sizes: list[float]) -> tuple[float, float]:
    """Return limits from the largest value down to the min, ten decades at most."""
    largest = max(sizes)
    return max(min(sizes), largest * 1e-10) / 3, largest * 3


def _paths(run: RunResult) -> list[tuple[int, dict[str, list[float]]]]:
    """Task number and path, of the first few and the last measured tasks that have one."""
    results = readable_measurement(run.folder)
    paths = [(task.task + 1, task.path) for task in (results.tasks if results else ()) if task.path]
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

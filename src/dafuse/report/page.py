"""One HTML page about some runs: complete in itself, for screens light and dark, and for paper.

What the page says is gathered here; how it looks is in `page.html.j2`.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dafuse import __version__
from dafuse.engine.config import flatten
from dafuse.files import write_atomically
from dafuse.report import (
    comparisons,
    measured_approximations,
    paired,
    run_figures,
    tables,
    tradeoffs,
)
from dafuse.report.drawing import Drawing, NothingToDraw, own_names
from dafuse.report.measures import COLUMNS, human_bytes, human_number
from dafuse.report.runs import RunResult
from dafuse.report.settings import SeedGroup, group_runs, stream_name
from dafuse.report.tables import UNKNOWN

Table = tuple[Sequence[str], list[list[str]]]  # head and rows, whose first cell heads the row

FIGURES: tuple[tuple[Callable[[RunResult], Drawing], str, str], ...] = (
    (
        run_figures.accuracy_matrix,
        "Accuracy matrix",
        "Read down a column to see how a task's accuracy holds while later tasks are learned. "
        "The diagonal is each task right after it was learned.",
    ),
    (
        run_figures.confusion,
        "Most confused classes",
        "The classes most often taken for each other after the latest task, in percent of each "
        "true class. The diagonal is what was right; the rest went to classes that are not shown.",
    ),
    (
        run_figures.beta_per_layer,
        "Fusion coefficient by layer",
        "β near 0 takes the new task's value, β near ½ keeps the mean of the initial and the old "
        "global adapter. Right: from the 5 % to the 95 % quantile, with the middle half darker and "
        "the median as a stroke.",
    ),
    (
        run_figures.fusion_diagnosis,
        "Fusion over tasks",
        "How much of β met its limits, how much the gradient g weighed against the displacement D, "
        "and how far the global adapter moved relative to its own norm.",
    ),
    (
        run_figures.bound_terms,
        "Terms of the bound",
        "What the paper's bound trades off. It motivates the rule; for one set of fixed weights "
        "it guarantees nothing.",
    ),
    (run_figures.training_loss, "Training loss", "Mean loss of each epoch, task after task."),
    (
        measured_approximations.loss_along_path,
        "Loss on the way to the fused adapter",
        "From the task's adapter to the fused one: the task's true training loss, and second-order "
        "models of it around the task's adapter. A model that leaves the axes is that far off.",
    ),
    (
        measured_approximations.fisher_against_hessian,
        "Fisher and Hessian, entry by entry",
        "Random entries of each of the adapter's tensors in the last measured task. Hollow: the "
        "second derivative is negative.",
    ),
    (
        run_figures.seconds_per_phase,
        "Seconds per phase",
        "Wall time of each task. Evaluation grows since all seen classes are tested every time.",
    ),
)
KINDS = ("modules", "statistics", "classifier", "exemplars")  # of what is kept
SHOWN_SKIPPED = 100


def write_page(
    runs: Iterable[RunResult],
    path: str | os.PathLike[str],
    title: str = "",
    missing: Sequence[str] = (),
    inside: str | os.PathLike[str] | None = None,
) -> None:
    """Write the page; ``inside`` is the run's folder, if it is written into one."""
    write_atomically(path, page(list(runs), title, missing), inside)


@dataclass(frozen=True)
class Figure:
    """A drawn figure with its words."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Tile:
    """A headline number: the numbers of one row, or the accuracies of each of several."""

    value: str
    meaning: str
    name: str = ""
    below: str = ""


def page(runs: list[RunResult], title: str = "", missing: Sequence[str] = ()) -> str:
    """Return the page: about these runs, or about an experiment and its missing runs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    groups, table, pairs = group_runs(runs), tables.make_table(runs), paired.pairings(runs)
    settings = [group for group in groups if group.runs[0].primary]
    titled = [(group.title(run), run) for group in settings for run in group.runs]
    repeated = any(len(group.runs) > 1 for group in groups)
    loader = PackageLoader("dafuse.report", "")
    looks = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return looks.get_template("page.html.j2").render(
        heading=f"{title}: {_heading(settings)}" if title else _heading(settings),
        lead=_lead(runs),
        alone=len(runs) == 1,
        repeated=repeated,
        tiles=_tiles(table),
        results=(tables.header(), tables.plain_rows(table)),
        missing=missing,
        grid=tables.grid(runs),
        paired=(paired.header(), paired.plain_rows(pairs)) if pairs else None,
        figures=list(_of_all(runs, repeated)),
        sections=[_section(f"run-{number}", *one) for number, one in enumerate(titled, 1)],
        shown_skipped=SHOWN_SKIPPED,
        columns=COLUMNS.values(),
        version=__version__,
    )


def _heading(groups: list[SeedGroup]) -> str:
    subject = groups[0].name if len(groups) == 1 else f"{len(groups)} settings"
    runs = [run for group in groups for run in group.runs]
    data = {run.config.data["name"] for run in runs}
    return f"{subject} on {data.pop()}" if len(data) == 1 else subject


def _lead(runs: list[RunResult]) -> str:
    """Say what the runs have in common."""
    classes = {len(run.classes) for run in runs}
    shared = [f"{count} classes" for count in classes if len(classes) == 1]
    streams = {stream_name(run) for run in runs}
    shared += sorted(streams - {""}) if len(streams) == 1 else []
    tasks = ["increment"] if streams == {""} else []
    for key in (*tasks, "backbone", "precision"):
        values = {str(run.config.flat().get(key)) for run in runs}
        if len(values) == 1 and values != {"None"}:
            value = values.pop()
            shared.append(f"{value} per task" if key == "increment" else value)
    count = f"{len(runs)} runs" if len(runs) > 1 else f"seed {runs[0].config.seed}"
    return " · ".join([*shared, count])


def _tiles(table: tables.Table) -> list[Tile]:
    """The headline: all of one row, or the accuracies of each of several."""

    def shown(row: tables.Row, key: str) -> str:
        return tables.show(row.cells[key], COLUMNS[key])

    if len(table.rows) == 1:
        row = table.rows[0]
        keys = ("final", "average", "stability", "plasticity", "forgetting", "kept_bytes")
        named = {
            "final": "Final accuracy (%)",
            "average": "Area under the curve (%)" if row.taskless else "Average accuracy (%)",
            "kept_bytes": "Kept beside the backbone",
        }
        return [Tile(shown(row, key), named.get(key, COLUMNS[key].title)) for key in keys]
    return [
        Tile(
            shown(row, "final"),
            "final accuracy (%)",
            row.name,
            f"{'area' if row.taskless else 'average'} {shown(row, 'average')}",
        )
        for row in table.rows
    ]


def _of_all(runs: list[RunResult], repeated: bool) -> Iterator[Figure]:
    """The figures of all runs together."""
    stds = "± one std over seeds." if repeated else ""
    if any(len(run.curve) > 1 for run in runs):  # points make no curve
        caption = "Accuracy over all test images of the classes seen so far (per sample)."
        caption += f" Bands: {stds}" if repeated else ""
        drawing = partial(comparisons.accuracy_curves, runs)
        yield from _drawn("curves", drawing, "Accuracy while classes arrive", caption)
    title = f"Over {comparisons.swept_option(runs).removeprefix('method.')}"
    caption = "All else is equal." + (f" Bars: {stds}" if repeated else "")
    yield from _drawn("sweep", partial(comparisons.sweep, runs), title, caption)
    drawing, caption = partial(tradeoffs.efficiency, runs), tradeoffs.efficiency_caption(runs)
    yield from _drawn("efficiency", drawing, "Accuracy and speed", caption)


def _drawn(anchor: str, make: Callable[[], Drawing], title: str, caption: str) -> Iterator[Figure]:
    """The figure, if there is something to draw."""
    with suppress(NothingToDraw):
        yield Figure(title, caption, own_names(make().svg(), anchor))


def _section(anchor: str, title: str, run: RunResult) -> dict[str, Any]:
    """Collect the page's section on one run: figures, times, bytes, skipped images and settings."""
    measurement = measured_approximations.readable_measurement(run.folder)
    origin = {**run.provenance.everything, "config_hash": run.hash, "folder": str(run.folder)}
    return {
        "anchor": anchor,
        "title": title,
        "run": run,
        "traits": _traits(run),
        "figures": [
            figure
            for number, (draw, name, caption) in enumerate(FIGURES)
            for figure in _drawn(f"{anchor}-{number}", partial(draw, run), name, caption)
        ],
        "phases": _phases(run),
        "kept": _kept(run),
        "measured": measurement
        and {
            "how": measured_approximations.how_measured(measurement),
            "agreement": (
                measured_approximations.AGREEMENT,
                measured_approximations.agreement_rows(measurement),
            ),
            "path": measured_approximations.path_rows(measurement),
        },
        "settings": {
            name: [[key, str(value)] for key, value in flatten(tree).items()]
            for name, tree in (("Config", run.config.everything), ("Provenance", origin))
        },
    }


def _traits(run: RunResult) -> str:
    passes, keeps = run.declared.passes_per_prediction, run.declared.keeps_images
    traits = [
        f"{passes:g} forward pass{'es' if passes != 1 else ''} per prediction" if passes else "",
        "" if keeps is None else f"keeps images: {'yes' if keeps else 'no'}",
        f"assumes {run.declared.assumes}" if run.declared.assumes else "",
        f"predicts by {run.prediction}" if run.prediction else "",
        f"also recorded by {', '.join(run.others)}" if run.others else "",
        f"on {run.provenance.device}" if run.provenance.device else "",
    ]
    return " · ".join(filter(None, traits))


def _phases(run: RunResult) -> Table:
    totals: dict[str, list[float]] = {}
    for task in run.tasks:
        for phase, seconds in task.seconds.items():
            total = totals.setdefault(phase, [0.0, 0.0])
            total[0] += seconds
            total[1] += task.images.get(phase, 0)
    everything = sum(seconds for seconds, _ in totals.values()) or math.nan
    rows = [
        [
            phase,
            human_number(seconds),
            f"{100 * seconds / everything:.1f} %",
            f"{images:.0f}" if images else UNKNOWN,
            human_number(images / seconds) if images and seconds else UNKNOWN,
        ]
        for phase, (seconds, images) in totals.items()
    ]
    return ["Phase, all tasks", "Seconds", "Share", "Images", "Images/s"], rows


def _kept(run: RunResult) -> Table:
    first, last = (run.tasks[t].kept_bytes for t in (0, -1))
    kinds = sorted({*first, *last}, key=[*KINDS, *first, *last].index)
    rows = [[kind, *(human_bytes(kept.get(kind, 0)) for kept in (first, last))] for kind in kinds]
    sums = ["all", human_bytes(sum(first.values())), human_bytes(sum(last.values()))]
    return ["Kind", "After the first task", "After the last"], [*rows, sums]

"""One HTML page about some runs: complete in itself, for screens light and dark, and for paper."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from dafuse import __version__
from dafuse.files import write_atomically
from dafuse.report import comparisons, paired, tables, tradeoffs
from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.section import html_figure, html_table, mark_of, run_section, with_deviation
from dafuse.report.settings import Group, group_runs, stream_name


def write_page(
    runs: Iterable[RunResult],
    path: str | os.PathLike[str],
    title: str = "",
    missing: Sequence[str] = (),
    inside: str | os.PathLike[str] | None = None,
) -> None:
    """Write the page; ``inside`` is the run's folder, if it is written into one."""
    write_atomically(path, page(list(runs), title, missing), inside)


def page(runs: list[RunResult], title: str = "", missing: Sequence[str] = ()) -> str:
    """About these runs; of an experiment also its name, and which of its runs are missing."""
    groups, table = group_runs(runs), tables.make_table(runs)
    alone, repeated = len(runs) == 1, any(len(group.runs) > 1 for group in groups)
    settings = [group for group in groups if group.runs[0].primary]
    heading = f"{title}: {_heading(settings)}" if title else _heading(settings)
    titled = [(group.title(run), run) for group in settings for run in group.runs]
    links = "".join(
        f'<li><a href="#run-{number}">{escape(title)}</a> {mark_of(run)}</li>'
        for number, (title, run) in enumerate(titled, 1)
    )
    template = resources.files("dafuse.report").joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=f"dafuse: {escape(heading)}",
        heading=escape(heading),
        lead=_lead(runs),
        contents=""
        if alone
        else '<nav aria-label="Contents"><a href="#results">Results</a><ol>'
        f'{links}</ol><a href="#definitions">What the numbers mean</a></nav>',
        tiles=_tiles(table),
        table=html_table(tables.header(), tables.plain_rows(table), "results"),
        table_note="Numbers after ± are the sample deviation over the runs of a row."
        if repeated
        else "",
        missing=_missing(missing),
        grid=html_table(*crossed) if (crossed := tables.grid(runs)) else "",
        paired=_paired(runs),
        curves=""
        if all(len(run.curve) == 1 for run in runs)  # points make no curve
        else html_figure(
            lambda: comparisons.accuracy_curves(runs),
            "curves",
            "Accuracy while classes arrive",
            "Accuracy over all test images of the classes seen so far (per sample)."
            + (" Bands: ± one deviation over seeds." if repeated else ""),
            wide=True,
        ),
        sweep=html_figure(
            lambda: comparisons.sweep(runs),
            "sweep",
            f"Over {comparisons.swept_option(runs).removeprefix('method.')}",
            "All else is equal." + (" Bars: ± one deviation over seeds." if repeated else ""),
            wide=True,
        ),
        efficiency=html_figure(
            lambda: tradeoffs.efficiency(runs),
            "efficiency",
            "Accuracy and speed",
            tradeoffs.efficiency_caption(runs),
            wide=True,
        ),
        runs="".join(
            run_section(f"run-{number}", title, run, alone)
            for number, (title, run) in enumerate(titled, 1)
        ),
        definitions="\n".join(
            f"<dt>{escape(column.title)}</dt><dd>{escape(column.meaning)}</dd>"
            for column in COLUMNS.values()
        ),
        version=escape(__version__),
    )


def _heading(groups: list[Group]) -> str:
    subject = groups[0].name if len(groups) == 1 else f"{len(groups)} settings"
    runs = [run for group in groups for run in group.runs]
    data = {run.config.data["name"] for run in runs}
    return f"{subject} on {data.pop()}" if len(data) == 1 else subject


def _lead(runs: list[RunResult]) -> str:
    """What the runs have in common."""
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
    return escape(" · ".join([*shared, count]))


def _missing(names: Sequence[str]) -> str:
    listed = "".join(f"<li>{escape(name)}</li>" for name in names)
    return f"<p>Missing from this table:</p><ul>{listed}</ul>" if names else ""


def _paired(runs: list[RunResult]) -> str:
    """Differences to DAF, where there are several seeds."""
    found = paired.pairings(runs)
    if not found:
        return ""
    note = (
        "Differences in points on the same seed, ± their deviation; the interval is Student's t at "
        "95 %. Where it holds 0, this many seeds do not tell the two apart."
    )
    table = html_table(paired.header(), paired.plain_rows(found))
    return f'<h3>Paired differences to DAF</h3>{table}<p class="soft">{escape(note)}</p>'


def _tiles(table: tables.Table) -> str:
    """The headline: all of one row, or the accuracies of each of several."""

    def shown(row: tables.Row, key: str) -> str:
        return with_deviation(tables.show(row.cells[key], COLUMNS[key]))

    if len(table.rows) == 1:
        row = table.rows[0]
        keys = ("final", "average", "stability", "plasticity", "forgetting", "kept_bytes")
        named = {
            "final": "Final accuracy (%)",
            "average": "Area under the curve (%)" if row.taskless else "Average accuracy (%)",
            "kept_bytes": "Kept beside the backbone",
        }
        return "\n".join(
            f'<div class="tile"><b>{shown(row, key)}</b>'
            f"<span>{named.get(key, COLUMNS[key].title)}</span></div>"
            for key in keys
        )
    return "\n".join(
        f'<div class="tile"><span class="name">{escape(row.name)}</span>'
        f"<b>{shown(row, 'final')}</b>"
        f"<span>final accuracy (%)<br>{'area' if row.taskless else 'average'} "
        f"{shown(row, 'average')}</span></div>"
        for row in table.rows
    )

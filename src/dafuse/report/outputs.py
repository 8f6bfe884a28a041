"""What runs can be made into, by name: tables as Markdown, figures as pictures."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dafuse.files import write_atomically
from dafuse.report import measurements, memory, paired, tables
from dafuse.report.approximation_figures import path_png
from dafuse.report.drawing import NothingToDraw
from dafuse.report.efficiency import efficiency_png
from dafuse.report.figures import curve_png
from dafuse.report.grid import grids
from dafuse.report.ranking import ranking_png
from dafuse.report.runs import RunResult
from dafuse.report.sweep import sweep_png

Runs = list[RunResult]


def results_table(runs: Runs) -> str:
    return tables.markdown(tables.make_table(runs))


def grid_table(runs: Runs) -> str:
    return "\n".join(tables.markdown_rows(*crossed) for crossed in grids(runs))


def memory_table(runs: Runs) -> str:
    rows = memory.rows(runs)
    return tables.markdown_rows(memory.HEAD, rows) if rows else ""


def paired_table(runs: Runs) -> str:
    pairs = paired.pairings(runs)
    return tables.markdown_rows(paired.header(), paired.plain_rows(pairs)) if pairs else ""


def approximations_table(runs: Runs) -> str:
    """What was measured of DAF's approximations at these runs."""
    parts = []
    for run in runs:
        if found := measurements.readable_measurement(run.folder):
            agreement = measurements.AGREEMENT, measurements.agreement_rows(found)
            told = f"{run.folder.name}: {measurements.how_measured(found)}"
            both = (tables.markdown_rows(*t) for t in (agreement, measurements.path_rows(found)))
            parts.append("\n".join([f"{told}\n", *both]))
    return "\n".join(parts)


def approximations_png(runs: Runs, path: str | os.PathLike[str]) -> None:
    """Of the first run at which something was measured."""
    measured = (run for run in runs if measurements.readable_measurement(run.folder))
    run = next(measured, None)
    if run is None:
        raise NothingToDraw("the figure needs a run at which the approximations were measured")
    path_png(run, path)


TABLES: dict[str, Callable[[Runs], str]] = {  # "" where the runs do not make one
    "table": results_table,
    "grid": grid_table,
    "paired": paired_table,
    "memory": memory_table,
    "approximations": approximations_table,
}
FIGURES: dict[str, Callable[[Runs, Path], None]] = {  # NothingToDraw where they do not make one
    "accuracy": curve_png,
    "efficiency": efficiency_png,
    "sweep": sweep_png,
    "ranking": ranking_png,
    "memory": memory.memory_png,
    "approximations": approximations_png,
}


def write_outputs(
    runs: Runs,
    file: Path,
    title: str,
    tables_named: Sequence[str],
    figure: str,
    missing: Sequence[str],
) -> list[str]:
    """The tables of these names in one Markdown file, and the figure; the lines to tell the user.

    Args:
        runs: those that are there
        file: where, without an ending
        title: of the Markdown file
        tables_named: of `TABLES`
        figure: of `FIGURES`
        missing: runs that are not there, named below the tables
    """
    lines = []
    parts = {name: TABLES[name](runs) for name in tables_named}
    below = [f"Missing: {'; '.join(missing)}\n"] if missing else []
    table, picture = file.with_name(f"{file.name}.md"), file.with_name(f"{file.name}.png")
    write_atomically(table, "\n".join([f"# {title}\n", *filter(None, parts.values()), *below]))
    lines.append(f"table: {table}")
    lines += [f"no {name}: these runs do not make one" for name, part in parts.items() if not part]
    try:
        FIGURES[figure](runs, picture)
        lines.append(f"figure: {picture}")
    except NothingToDraw as why:
        picture.unlink(missing_ok=True)  # of other runs
        lines.append(f"no figure: {why}")
    return lines

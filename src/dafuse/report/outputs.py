"""Files about runs: a page, tables and figures by name, a table of all runs."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dafuse.files import make_folder, write_atomically
from dafuse.report import (
    comparisons,
    intervals,
    measured_approximations,
    paired,
    tables,
    tradeoffs,
)
from dafuse.report.drawing import Drawing, NothingToDraw
from dafuse.report.page import page
from dafuse.report.runs import RunResult, find_runs
from dafuse.report.runs_table import csv_ledger, ledger, markdown_ledger
from dafuse.report.settings import Recipe

Runs = list[RunResult]


def results_table(runs: Runs) -> str:
    return tables.markdown(tables.make_table(runs))


def grid_table(runs: Runs) -> str:
    return "\n".join(tables.markdown_rows(*crossed) for crossed in tables.grids(runs))


def memory_table(runs: Runs) -> str:
    rows = tradeoffs.memory_rows(runs)
    return tables.markdown_rows(tradeoffs.MEMORY_HEAD, rows) if rows else ""


def paired_table(runs: Runs) -> str:
    pairs = paired.pairings(runs)
    return tables.markdown_rows(paired.header(), paired.plain_rows(pairs)) if pairs else ""


def intervals_table(runs: Runs) -> str:
    rows = intervals.plain_rows(runs)
    return tables.markdown_rows(intervals.header(), rows) if rows else ""


def approximations_table(runs: Runs) -> str:
    """Return what was measured of DAF's approximations at these runs."""
    parts = []
    for run in runs:
        if measurement := measured_approximations.readable_measurement(run.folder):
            agreement = (
                measured_approximations.AGREEMENT,
                measured_approximations.agreement_rows(measurement),
            )
            in_words = f"{run.folder.name}: {measured_approximations.how_measured(measurement)}"
            both = (
                tables.markdown_rows(*t)
                for t in (agreement, measured_approximations.path_rows(measurement))
            )
            parts.append("\n".join([f"{in_words}\n", *both]))
    return "\n".join(parts)


def approximations_figure(runs: Runs) -> Drawing:
    """Draw those of the first run at which something was measured."""
    for run in runs:
        if measured_approximations.readable_measurement(run.folder):
            return measured_approximations.loss_along_path(run)
    raise NothingToDraw("the figure needs a run at which the approximations were measured")


TABLES: dict[str, Callable[[Runs], str]] = {  # "" where the runs do not make one
    "table": results_table,
    "grid": grid_table,
    "paired": paired_table,
    "intervals": intervals_table,
    "memory": memory_table,
    "approximations": approximations_table,
}
FIGURES: dict[str, Callable[[Runs], Drawing]] = {  # NothingToDraw where they do not make one
    "accuracy": comparisons.accuracy_curves,
    "efficiency": tradeoffs.efficiency,
    "sweep": comparisons.sweep,
    "ranking": comparisons.ranking,
    "memory": tradeoffs.memory,
    "approximations": approximations_figure,
}


def write_outputs(
    runs: Runs,
    file: Path,
    title: str,
    tables_named: Sequence[str],
    figure: str,
    missing: Sequence[str],
) -> list[str]:
    """Write these tables into one Markdown file, and the figure; return the lines to tell the user.

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
    table, image = file.with_name(f"{file.name}.md"), file.with_name(f"{file.name}.png")
    write_atomically(table, "\n".join([f"# {title}\n", *filter(None, parts.values()), *below]))
    lines.append(f"table: {table}")
    lines += [f"no {name}: these runs do not make one" for name, part in parts.items() if not part]
    try:
        FIGURES[figure](runs).write_png(image)
        lines.append(f"figure: {image}")
    except NothingToDraw as why:
        image.unlink(missing_ok=True)  # of other runs
        lines.append(f"no figure: {why}")
    return lines


def report(paths: list[str], out: str = "report") -> str:
    """Write a page, tables and figures about runs; return the lines to tell the user.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The folder to write into; it is made if it is not there.
    """
    lines: list[str] = []
    runs = find_runs(paths, say=lines.append)
    lines += [
        f"skipped: {damage}" for damage in measured_approximations.damages(r.folder for r in runs)
    ]
    folder = make_folder(out)
    table = tables.make_table(runs)
    contents = {
        "report.html": page(runs),
        "table.csv": tables.csv(table),
        "table.tex": tables.latex(table),
        **{f"{name}.md": make(runs) for name, make in TABLES.items()},
    }
    written = {name: content for name, content in contents.items() if content}
    for name, content in written.items():
        write_atomically(folder / name, content)
    lines += [f"wrote {folder / name}" for name in written]
    for name, draw in FIGURES.items():
        with suppress(NothingToDraw):
            draw(runs).write_png(folder / f"{name}.png")
            lines.append(f"wrote {folder / name}.png")
    return "\n".join(lines)


def write_ledger(
    paths: list[str],
    file: str,
    recipes: Sequence[Recipe] = (),
    listed: Sequence[Recipe] = (),
    speeds: bool = True,
) -> str:
    """Write the ledger of these runs; return the line to tell the user.

    The file is CSV if its name ends in ``.csv``, and Markdown otherwise.
    """
    write = csv_ledger if Path(file).suffix.lower() == ".csv" else markdown_ledger
    write_atomically(file, write(ledger(find_runs(paths), recipes, listed, speeds)))
    return f"wrote {file}"

"""The command `dafuse report`: run folders in, a page, tables and pictures out."""

from collections.abc import Sequence
from pathlib import Path

from dafuse.errors import DafuseError
from dafuse.files import write_atomically
from dafuse.report import measurements, paired, tables
from dafuse.report.efficiency import efficiency_png, efficiency_points
from dafuse.report.figures import curve_png
from dafuse.report.grid import grid
from dafuse.report.ledger import ledger
from dafuse.report.page import page
from dafuse.report.runs import RunResult, find_runs
from dafuse.report.setting import Recipe
from dafuse.report.sweep import sweep_png, swept_option


def report(paths: list[str], out: str = "report") -> str:
    """Write a page, tables and pictures about runs; gives the lines to tell the user.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The folder to write into; it is made if it is not there.
    """
    lines: list[str] = []
    runs = find_runs(paths, say=lines.append)
    lines += [f"left out: {damage}" for damage in measurements.damages(r.folder for r in runs)]
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DafuseError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    table = tables.make_table(runs)
    written = {
        "report.html": page(runs),
        "table.md": tables.markdown(table),
        "table.csv": tables.csv(table),
        "table.tex": tables.latex(table),
    }
    if crossed := grid(runs):
        written["grid.md"] = tables.markdown_rows(*crossed)
    if pairs := paired.pairings(runs):
        written["paired.md"] = tables.markdown_rows(paired.header(), paired.plain_rows(pairs))
    if measured := _measured(runs):
        written["approximations.md"] = measured
    for name, content in written.items():
        write_atomically(folder / name, content)
    curve_png(runs, folder / "accuracy.png")
    pictures = ["accuracy.png"]
    if efficiency_points(runs):
        efficiency_png(runs, folder / "efficiency.png")
        pictures.append("efficiency.png")
    if swept_option(runs):
        sweep_png(runs, folder / "sweep.png")
        pictures.append("sweep.png")
    lines += [f"wrote {folder / name}" for name in (*written, *pictures)]
    return "\n".join(lines)


def write_ledger(
    paths: list[str],
    file: str,
    recipes: Sequence[Recipe] = (),
    listed: Sequence[Recipe] = (),
    speeds: bool = True,
) -> str:
    """Write the ledger of these runs; gives the line to tell the user."""
    write_atomically(file, ledger(find_runs(paths), recipes, listed, speeds))
    return f"wrote {file}"


def _measured(runs: list[RunResult]) -> str:
    """What was measured of DAF's approximations at these runs, if anything, as Markdown."""
    parts = []
    for run in runs:
        if found := measurements.readable_measurement(run.folder):
            agreement = measurements.AGREEMENT, measurements.agreement_rows(found)
            told = f"{run.folder.name}: {measurements.how_measured(found)}"
            both = (tables.markdown_rows(*t) for t in (agreement, measurements.path_rows(found)))
            parts.append("\n".join([f"{told}\n", *both]))
    return "\n".join(parts)

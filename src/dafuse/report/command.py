"""The command `dafuse report`: run folders in, a page, tables and pictures out."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dafuse.files import make_folder, write_atomically
from dafuse.report import measurements, tables
from dafuse.report.drawing import NothingToDraw
from dafuse.report.ledger import csv_ledger, ledger, markdown_ledger
from dafuse.report.outputs import FIGURES, TABLES
from dafuse.report.page import page
from dafuse.report.runs import find_runs
from dafuse.report.setting import Recipe


def report(paths: list[str], out: str = "report") -> str:
    """Write a page, tables and pictures about runs; gives the lines to tell the user.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The folder to write into; it is made if it is not there.
    """
    lines: list[str] = []
    runs = find_runs(paths, say=lines.append)
    lines += [f"left out: {damage}" for damage in measurements.damages(r.folder for r in runs)]
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
            draw(runs, folder / f"{name}.png")
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

"""The command `dafuse report`: run folders in, a page and tables out."""

from pathlib import Path

from dafuse.errors import DafuseError
from dafuse.files import write_atomically
from dafuse.report import tables
from dafuse.report.page import write_page
from dafuse.report.runs import find_runs


def report(paths: list[str], out: str = "report") -> str:
    """Write a page and tables about runs; gives the lines to tell the user.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The folder to write into; it is made if it is not there.
    """
    lines: list[str] = []
    runs = find_runs(paths, say=lines.append)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DafuseError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    table = tables.make_table(runs)
    write_page(runs, folder / "report.html")
    write_atomically(folder / "table.md", tables.markdown(table))
    write_atomically(folder / "table.csv", tables.csv(table))
    write_atomically(folder / "table.tex", tables.latex(table))
    lines += [f"wrote {folder / name}" for name in WRITTEN]
    return "\n".join(lines)


WRITTEN = ("report.html", "table.md", "table.csv", "table.tex")

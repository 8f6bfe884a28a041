"""The results of finished runs on the terminal: the table, and where the page is."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dafuse.report import intervals, measured_approximations, paired
from dafuse.report.page import write_page
from dafuse.report.runs import RunResult
from dafuse.report.tables import grid, make_table, terminal, terminal_rows
from dafuse.wording import shown


def wide_console() -> Console:
    """A console for tables: a file has no width to keep to."""
    console = Console()
    return console if console.is_terminal else Console(width=max(160, console.width))


def show_results(
    runs: list[RunResult],
    page: Path,
    title: str = "",
    missing: Sequence[str] = (),
    inside: Path | None = None,
) -> None:
    """Write the page and print the tables."""
    write_page(runs, page, title, missing, inside)
    console = Console()
    console.print(terminal(make_table(runs)))
    if crossed := grid(runs):
        console.print(terminal_rows(*crossed))
    if over_seeds := intervals.plain_rows(runs):
        console.print(terminal_rows(intervals.header(), over_seeds))
    if pairs := paired.pairings(runs):
        console.print(terminal_rows(paired.header(), paired.plain_rows(pairs)))
    for run in runs:
        if found := measured_approximations.readable_measurement(run.folder):
            told = f"{run.folder.name}: {measured_approximations.how_measured(found)}"
            console.print(shown(told), markup=False)
            rows = [
                measured_approximations.AGREEMENT,
                *measured_approximations.agreement_rows(found),
            ]
            together = [[row[0], *row[3:]] for row in rows if row[1] in ("Part", "all")]
            console.print(terminal_rows(together[0], together[1:]))
            console.print(terminal_rows(*measured_approximations.path_rows(found)))
    console.print(shown(f"report: {page.resolve()}"), markup=False, highlight=False, soft_wrap=True)

"""One table over runs: a row per group of seeds, as Markdown, CSV, LaTeX or on the terminal.

Where runs vary two options, a grid of one against the other shows which cells are missing.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from csv import writer
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

from dafuse.report.measures import COLUMNS, NAN, Column, measures
from dafuse.report.runs import RunResult
from dafuse.report.settings import SeedGroup, differing_options, group_runs, options_of
from dafuse.wording import shown

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

UNKNOWN = "–"
NONE = "none"  # the speed of a training that there is not
FOR_TERMINAL = ("Method", "Runs", "Average", "Final", "Forgetting", "Kept")
IN_GRID = ("average", "final")
GRID_TITLE = " / ".join(COLUMNS[key].title for key in IN_GRID)
MISSING = "missing"  # a cell of a grid that no run has filled

Grid = tuple[list[str], list[list[str]]]  # head and rows


class Cell(NamedTuple):
    """Mean and sample std over the runs that have a value; NaN where there is none."""

    mean: float
    std: float


@dataclass(frozen=True)
class Row:
    name: str
    runs: int
    seeds: int
    tasks: int
    tasks_total: int
    taskless: bool  # a stream without tasks: its average is the area under its curve
    cells: dict[str, Cell]
    trains: bool = True  # or nothing, in no task


@dataclass(frozen=True)
class Table:
    rows: list[Row]


def make_table(runs: Iterable[RunResult]) -> Table:
    return Table([_row(group) for group in group_runs(runs)])


def _row(group: SeedGroup) -> Row:
    values = [measures(run) for run in group.runs]
    first = group.runs[0]
    return Row(
        group.label,
        len(group.runs),
        len({run.config.seed for run in group.runs}),
        len(first.matrix),
        first.tasks_total,
        first.config.stream != "tasks",
        {key: _cell([value[key] for value in values]) for key in COLUMNS},
        any(run.trains for run in group.runs),
    )


def _cell(values: list[float]) -> Cell:
    known = [value for value in values if not math.isnan(value)]
    return Cell(
        statistics.fmean(known) if known else NAN,
        statistics.stdev(known) if len(known) > 1 else NAN,
    )


def header() -> list[str]:
    return ["Method", "Runs", "Tasks", *(column.title for column in COLUMNS.values())]


def plain_rows(table: Table) -> list[list[str]]:
    """Every row as readable text, under `header()`."""
    return [
        [
            row.name,
            str(row.runs) if row.runs == row.seeds else f"{row.runs} (seeds: {row.seeds})",
            str(row.tasks) if row.tasks == row.tasks_total else f"{row.tasks}/{row.tasks_total}",
            *(
                NONE if key == "train_speed" and not row.trains else show(row.cells[key], column)
                for key, column in COLUMNS.items()
            ),
        ]
        for row in table.rows
    ]


def show(cell: Cell, column: Column) -> str:
    if math.isnan(cell.mean):
        return UNKNOWN
    text = column.show(cell.mean)
    if math.isnan(cell.std) or not column.with_std:
        return text
    return f"{text} ± {column.show(cell.std)}"


def markdown(table: Table) -> str:
    return markdown_rows(header(), plain_rows(table))


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Any table: the first column to the left, the others to the right. Text is escaped here."""
    escaped = [[_escape_markdown(text) for text in row] for row in rows]
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *escaped])


def csv(table: Table) -> str:
    """Numbers in full, without units: percent, images per second, seconds, bytes."""
    pairs = [name for key in COLUMNS for name in (key, f"{key}_deviation")]
    rows: list[list[object]] = []
    for row in table.rows:
        numbers = [number for key in COLUMNS for number in row.cells[key]]
        known = ["" if math.isnan(number) else repr(number) for number in numbers]
        rows.append([row.name, row.runs, row.seeds, row.tasks, row.tasks_total, *known])
    return csv_rows(["method", "runs", "seeds", "tasks", "tasks_total", *pairs], rows)


def csv_rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return any table as CSV, with Unix line ends."""
    text = StringIO()
    writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def latex(table: Table) -> str:
    """A tabular for the package booktabs."""
    head, *rows = (
        " & ".join(map(_escape_latex, row)) + r" \\" for row in [header(), *plain_rows(table)]
    )
    columns = "l" + "r" * (len(header()) - 1)
    body = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", ""])


def terminal(table: Table) -> "TerminalTable":
    """Make a table for rich: up to four rows upright; else the columns that fit a terminal."""
    cells = [header(), *plain_rows(table)]
    if len(table.rows) <= 4:
        cells = [list(column) for column in zip(*cells, strict=True)]
    else:
        kept = [header().index(title) for title in FOR_TERMINAL]
        cells = [[row[k] for k in kept] for row in cells]
    return terminal_rows(cells[0], cells[1:])


def terminal_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> "TerminalTable":
    """Any table for rich, its text taken as it is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as TerminalTable
    from rich.text import Text

    drawn = TerminalTable(box=SIMPLE_HEAD)
    for number, title in enumerate(head):
        drawn.add_column(Text(shown(title)), justify="right" if number else "left")
    for row in rows:
        drawn.add_row(*(Text(shown(text)) for text in row))
    return drawn


def grid(runs: Iterable[RunResult]) -> Grid | None:
    """Return one option down and the other across, if the runs differ in two options alone.

    Seeds do not count. There is no grid of which more than half would be empty, as when runs vary
    the one option or the other, never both.
    """
    runs = list(runs)
    varied = differing_options(runs)
    return _crossed(runs, varied, GRID_TITLE) if len(varied) == 2 else None


def grids(runs: Iterable[RunResult]) -> list[Grid]:
    """Return the grid of all runs; or one of each method that varies two options or more.

    If there are more than two, the first goes down and the others go across together.
    """
    runs = list(runs)
    if whole := grid(runs):
        return [whole]
    found = []
    for method in dict.fromkeys(run.config.method for run in runs):
        own = [run for run in runs if run.config.method == method]
        varied = differing_options(own)
        if len(varied) >= 2 and (crossed := _crossed(own, varied, f"{method}, {GRID_TITLE}")):
            found.append(crossed)
    return found


def _crossed(runs: list[RunResult], varied: list[str], title: str) -> Grid | None:
    if any(run.others for run in runs):
        return None
    groups = [options_of(group.runs[0]) for group in group_runs(runs)]
    values = [
        (str(options.get(varied[0])), ", ".join(str(options.get(key)) for key in varied[1:]))
        for options in groups
    ]
    downs, acrosses = (list(dict.fromkeys(column)) for column in zip(*values, strict=True))
    if min(len(downs), len(acrosses)) < 2 or 2 * len(values) <= len(downs) * len(acrosses):
        return None  # a line, or too few cells for a grid
    cells = dict(zip(values, map(_in_grid, make_table(runs).rows), strict=True))
    down, *across = (option.removeprefix("method.") for option in varied)
    head = [f"{title}: {down}, and {', '.join(across)} across", *acrosses]
    return head, [[d, *(cells.get((d, a), MISSING) for a in acrosses)] for d in downs]


def _in_grid(row: Row) -> str:
    if row.tasks < row.tasks_total:
        return f"{row.tasks} of {row.tasks_total} tasks"
    return " / ".join(show(row.cells[key], COLUMNS[key]) for key in IN_GRID)


def _escape_markdown(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ("|", r"\|"), ("<", "&lt;"), ("*", r"\*"), ("\n", " ")):
        text = text.replace(plain, escaped)
    return shown(text)


_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", UNKNOWN: "--", "<": r"\textless{}", ">": r"\textgreater{}", "\n": " "},
}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)

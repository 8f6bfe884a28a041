"""Two options varied and all else equal: one of them down, the other across.

So the DAF paper studies initialisation and fusion. Cells that no run has filled are seen.
"""

from collections.abc import Iterable

from dafuse.report.groups import differing_options, group_runs, options_of
from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.tables import Row, make_table, show

SHOWN = ("average", "final")
TITLE = " / ".join(COLUMNS[key].title for key in SHOWN)
MISSING = "missing"


Grid = tuple[list[str], list[list[str]]]  # head and rows


def grid(runs: Iterable[RunResult]) -> Grid | None:
    """Its head and its rows, where the runs differ, beside their seeds, in two options alone.

    Of runs that vary the one or the other, never both, more than half of a grid would be empty.
    """
    runs = list(runs)
    varied = differing_options(runs)
    return _crossed(runs, varied, TITLE) if len(varied) == 2 else None


def grids(runs: Iterable[RunResult]) -> list[Grid]:
    """The grid of all runs; or one of each method that varies two options or more.

    If there are more than two, the first goes down and the others go across together.
    """
    runs = list(runs)
    if whole := grid(runs):
        return [whole]
    found = []
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        varied = differing_options(own)
        if len(varied) >= 2 and (crossed := _crossed(own, varied, f"{method}, {TITLE}")):
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
    cells = dict(zip(values, map(_shown, make_table(runs).rows), strict=True))
    down, *across = (option.removeprefix("method.") for option in varied)
    head = [f"{title}: {down}, and {', '.join(across)} across", *acrosses]
    return head, [[d, *(cells.get((d, a), MISSING) for a in acrosses)] for d in downs]


def _shown(row: Row) -> str:
    if row.tasks < row.tasks_total:
        return f"{row.tasks} of {row.tasks_total} tasks"
    return " / ".join(show(row.cells[key], COLUMNS[key]) for key in SHOWN)

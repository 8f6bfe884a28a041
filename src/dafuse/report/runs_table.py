"""The ledger: a row for each run, with all that a reader needs to check its numbers.

A row is made from the run's folder alone. The numbers that a recipe expects stand beside a run only
if the run has the same setting: method and options, data, backbone, normalisation, increment, class
order and seed.
"""

from collections.abc import Sequence
from typing import Any

from dafuse.report.measures import COLUMNS, measures
from dafuse.report.runs import RunResult
from dafuse.report.settings import (
    Recipe,
    changed_options,
    command_of,
    data_name,
    named,
    setting,
    stream_name,
)
from dafuse.report.tables import UNKNOWN, Cell, csv_rows, markdown_rows, show

NUMBERS = (
    *("average", "final", "average_per_task", "final_per_task", "stability", "plasticity"),
    *("train_speed", "inference_speed", "kept_bytes", "passes"),
)
SPEEDS = ("train_speed", "inference_speed")
VERSIONS = ("dafuse", "torch", "timm")
SHOWN_HASH = 8
OUR_OWN = "docs/"  # sources that begin so are runs of this very code
CLOSE = 0.5  # points
COMMAND = "Command"
ORIGIN = ("Config", "Weights", "Data fingerprint", "Device", "Date", "Versions")
PURPOSE = """# Ledger

`dafuse report` wrote one row for each run from its folder; a run that predicts in several ways has
a row for each way. The commands of the runs are below. Accuracies are in percent. Expected: the
average and final accuracy that the source gives for the same setting. Verified: both are within 0.5
points of it, and the source is not a run of this code.
"""


def ledger(
    runs: Sequence[RunResult],
    recipes: Sequence[Recipe] = (),
    listed: Sequence[Recipe] = (),
    speeds: bool = True,
) -> list[dict[str, str]]:
    """Return a row for each run, and one marked "not run" for each ``listed`` recipe without a run.

    All rows have the same columns in the same order; the last one is the command.
    """
    views = [view for run in runs for view in run.views()]
    numbers = [key for key in NUMBERS if speeds or key not in SPEEDS]
    rows = [[*_run_row(view, recipes, numbers), command_of(view)] for view in views]
    for recipe in listed:
        if not any(recipe.is_of(run) for run in runs):
            rows.append([*_recipe_row(recipe, numbers), f"dafuse run {recipe.name}"])
    head = [*_header(numbers), COMMAND]
    return [dict(zip(head, row, strict=True)) for row in rows]


def csv_ledger(rows: Sequence[dict[str, str]]) -> str:
    """Return the rows as CSV; what is not known is empty."""
    known = [["" if text == UNKNOWN else text for text in row.values()] for row in rows]
    return csv_rows(list(rows[0]), known)


def markdown_ledger(rows: Sequence[dict[str, str]]) -> str:
    """Return a page with the rows as a table and their commands as a list below it."""
    *head, _ = rows[0]
    numbered = [[str(n), *(row[title] for title in head)] for n, row in enumerate(rows, 1)]
    table = markdown_rows(["#", *head], numbered)
    lines = "".join(f"{number}. `{row[COMMAND]}`\n" for number, row in enumerate(rows, 1))
    return f"{PURPOSE}\n{table}\n## Commands\n\n{lines}"


def _header(numbers: Sequence[str]) -> list[str]:
    titles = [COLUMNS[key].title for key in numbers]
    asked = ["Method", "Data", "Backbone", "Increment", "Seed", "Status"]
    return [*asked, *titles, "Expected", "Source", "Verified", *ORIGIN]


def _run_row(run: RunResult, recipes: Sequence[Recipe], numbers: Sequence[str]) -> list[str]:
    found, origin = measures(run), run.provenance
    way = f" [{run.prediction}]" if run.prediction else ""
    matching = [r for r in recipes if not run.mark and r.expected and r.is_of(run)]
    expected = next((r.expected for r in matching if _is_way(run, r.expected)), {})
    return [
        named(run.config.method, changed_options(run)) + way,
        ", ".join(filter(None, [data_name(run.config.data), stream_name(run)])),
        str(setting(run, "backbone")),
        str(setting(run, "increment")),
        str(run.config.seed),
        (f"unfinished: {run.mark}" if run.mark else "finished")
        + (", training replayed" if run.replayed else ""),
        *(show(Cell(found[key], float("nan")), COLUMNS[key]) for key in numbers),
        *_expected(expected),
        _verified(found, expected),
        run.hash[:SHOWN_HASH] or UNKNOWN,
        origin.weights[:SHOWN_HASH] or UNKNOWN,
        origin.data[:SHOWN_HASH] or UNKNOWN,
        origin.device or UNKNOWN,
        origin.date or UNKNOWN,
        ", ".join(f"{name} {origin.versions[name]}" for name in VERSIONS if name in origin.versions)
        or UNKNOWN,
    ]


def _recipe_row(recipe: Recipe, numbers: Sequence[str]) -> list[str]:
    method = {key: value for key, value in recipe.asked["method"].items() if key != "name"}
    return [
        named(recipe.asked["method"]["name"], method),
        recipe.asked["data"]["name"],
        *(str(recipe.setting(key)) for key in ("backbone", "increment", "seed")),
        "not run",
        *[UNKNOWN] * len(numbers),
        *_expected(recipe.expected),
        "no",
        *[UNKNOWN] * len(ORIGIN),
    ]


def _expected(expected: dict[str, Any]) -> tuple[str, str]:
    if "average" not in expected and "final" not in expected:
        return UNKNOWN, UNKNOWN
    numbers = (str(expected.get(key, UNKNOWN)) for key in ("average", "final"))
    return " / ".join(numbers), str(expected.get("source", UNKNOWN))


def _verified(found: dict[str, float], expected: dict[str, Any]) -> str:
    known = [key for key in ("average", "final") if key in expected]
    if not known or str(expected.get("source", OUR_OWN)).startswith(OUR_OWN):
        return "no"
    off = max(abs(found[key] - expected[key]) for key in known)
    return "yes" if off <= CLOSE else f"no: off by {off:.2f}"


def _is_way(run: RunResult, expected: dict[str, Any]) -> bool:
    way = expected.get("prediction")
    return run.primary if way is None else run.prediction == way

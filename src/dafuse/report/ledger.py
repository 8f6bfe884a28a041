"""The ledger: one row a run, with all that a number needs to be believed, from its folder alone.

What somebody expects of a recipe stands beside a run only where the run is of that very setting:
method and options, data, backbone, normalisation, increment, class order and seed.
"""

from collections.abc import Sequence
from typing import Any

from dafuse.report.groups import changed_options
from dafuse.report.measures import COLUMNS, measures
from dafuse.report.runs import RunResult
from dafuse.report.setting import Recipe, command_of, data_name, named, setting, stream_name
from dafuse.report.tables import UNKNOWN, Cell, markdown_rows, show

NUMBERS = (
    *("average", "final", "average_per_task", "final_per_task", "stability", "plasticity"),
    *("train_speed", "inference_speed", "kept_bytes", "passes"),
)
SPEEDS = ("train_speed", "inference_speed")
VERSIONS = ("dafuse", "torch", "timm")
SHOWN_HASH = 8
OUR_OWN = "docs/"  # sources that begin so are runs of this very code
CLOSE = 0.5  # points
ORIGIN = ("Config", "Weights", "Data fingerprint", "Device", "Date", "Versions")
PURPOSE = """# Ledger

One row a run (of several ways to predict, one each), made from the run folders by `dafuse report`;
the commands are below. Accuracies are in percent. Expected: the average and final accuracy that the
source gives for this very setting. Verified: both are within 0.5 points of it, and the source is
not a run of this code.
"""


def ledger(
    runs: Sequence[RunResult],
    recipes: Sequence[Recipe] = (),
    listed: Sequence[Recipe] = (),
    speeds: bool = True,
) -> str:
    """As Markdown. Of the ``listed`` recipes those that no run is of get a row marked "not run"."""
    views = [view for run in runs for view in run.views()]
    numbers = [key for key in NUMBERS if speeds or key not in SPEEDS]
    rows = [_run_row(view, recipes, numbers) for view in views]
    commands = [command_of(view) for view in views]
    for recipe in listed:
        if not any(recipe.is_of(run) for run in runs):
            rows.append(_recipe_row(recipe, numbers))
            commands.append(f"dafuse run {recipe.name}")
    numbered = [[str(number), *row] for number, row in enumerate(rows, 1)]
    table = markdown_rows(["#", *_header(numbers)], numbered)
    lines = "".join(f"{number}. `{command}`\n" for number, command in enumerate(commands, 1))
    return f"{PURPOSE}\n{table}\n## Commands\n\n{lines}"


def _header(numbers: Sequence[str]) -> list[str]:
    titles = [COLUMNS[key].title for key in numbers]
    asked = ["Method", "Data", "Backbone", "Increment", "Seed", "Status"]
    return [*asked, *titles, "Expected", "Source", "Verified", *ORIGIN]


def _run_row(run: RunResult, recipes: Sequence[Recipe], numbers: Sequence[str]) -> list[str]:
    found, origin = measures(run), run.provenance
    way = f" [{run.prediction}]" if run.prediction else ""
    versions = origin.get("versions", {})
    matching = [r for r in recipes if not run.mark and r.expected and r.is_of(run)]
    expected = next((r.expected for r in matching if _is_way(run, r.expected)), {})
    return [
        named(run.method, changed_options(run)) + way,
        ", ".join(filter(None, [data_name(run.config["data"]), stream_name(run)])),
        str(setting(run, "backbone")),
        str(setting(run, "increment")),
        str(run.seed),
        (f"unfinished: {run.mark}" if run.mark else "finished")
        + (", training replayed" if run.replayed else ""),
        *(show(Cell(found[key], float("nan")), COLUMNS[key]) for key in numbers),
        *_told(expected),
        _verified(found, expected),
        run.hash[:SHOWN_HASH] or UNKNOWN,
        origin.get("weights", {}).get("sha256", "")[:SHOWN_HASH] or UNKNOWN,
        origin.get("data_fingerprint", "")[:SHOWN_HASH] or UNKNOWN,
        origin.get("device", UNKNOWN),
        origin.get("started", "")[:10] or UNKNOWN,
        ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions) or UNKNOWN,
    ]


def _recipe_row(recipe: Recipe, numbers: Sequence[str]) -> list[str]:
    method = {key: value for key, value in recipe.asked["method"].items() if key != "name"}
    return [
        named(recipe.asked["method"]["name"], method),
        recipe.asked["data"]["name"],
        *(str(recipe.setting(key)) for key in ("backbone", "increment", "seed")),
        "not run",
        *[UNKNOWN] * len(numbers),
        *_told(recipe.expected),
        "no",
        *[UNKNOWN] * len(ORIGIN),
    ]


def _told(expected: dict[str, Any]) -> tuple[str, str]:
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

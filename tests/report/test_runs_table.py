"""The ledger: each run's origin and command; expectations beside the very same setting only."""

import csv
import shlex
from dataclasses import asdict, replace

import pytest

from dafuse.cli import start
from dafuse.commands.recipes import RECIPES, expected, read_recipe
from dafuse.commands.run import parse
from dafuse.engine.config import RunConfig
from dafuse.engine.run import resolved
from dafuse.errors import DafuseError
from dafuse.report.runs import find_runs, load_run
from dafuse.report.runs_table import ledger
from dafuse.report.settings import Recipe, command_of
from helpers.run_folders import make_run, put_counts, rewrite

DEFAULTS = {"defaults": {"alpha": 1.25, "rule": "dynamic"}}
RECIPE = Recipe(
    "daf-cifar100-deit-tiny",
    {
        "method": {"name": "daf"},
        "data": {"name": "cifar100"},
        "backbone": "deit_tiny_patch16_224.fb_in1k",
        "increment": 5,
        "precision": "bf16",
    },
    {"average": 79.17, "final": 69.22, "source": "somebody"},
)


def rows(text):
    """The rows of a ledger in Markdown as dicts."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *body = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in body]


def test_a_row_has_numbers_origin_status_and_command(tmp_path):
    folder = make_run(tmp_path / "a", tasks=2, options={"alpha": 2.0}, declares=DEFAULTS)

    def by_hand(content):
        put_counts(content, [[8], [6, 27]], [[10], [10, 30]])

    rewrite(folder, "results.json", by_hand)
    make_run(tmp_path / "b", method="tuna", tasks=4, done=3, seed=7)
    first, second = ledger(find_runs([tmp_path]))
    assert first["Method"] == "daf (alpha=2.0)"
    assert (first["Data"], first["Backbone"]) == ("cifar100", "deit_tiny_patch16_224.fb_in1k")
    assert (first["Increment"], first["Seed"], first["Status"]) == ("5", "1993", "finished")
    assert (first["Average"], first["Final"]) == ("81.25", "82.50")
    assert (first["Average (per task)"], first["Final (per task)"]) == ("77.50", "75.00")
    assert (first["Stability"], first["Plasticity"], first["Passes"]) == ("60.00", "85.00", "1")
    assert (first["Config"], first["Weights"]) == ("efefefef", "abababab")
    assert first["Data fingerprint"] == "cdcdcdcd"
    assert (first["Device"], first["Date"]) == ("cpu (2 threads)", "2026-11-15")
    assert first["Versions"] == "dafuse 0.1.0, torch 2.11.0"
    assert first["Expected"] == first["Source"] == "–"
    assert second["Status"] == "unfinished: 3 of 4 tasks"
    assert first["Command"].startswith("dafuse run --method=daf --method.alpha=2.0 --data=cifar100")
    assert "--seed=7" in second["Command"]


def test_the_ledger_is_markdown_or_csv_by_the_files_name(tmp_path):
    make_run(tmp_path / "runs" / "a", declares=DEFAULTS, options={"alpha": 2.0})
    make_run(tmp_path / "runs" / "b", method="tuna", tasks=4, done=3)
    made = ledger(find_runs([tmp_path / "runs"]))
    out = ["--out", str(tmp_path / "out")]
    for name in ("ledger.md", "ledger.csv", "LEDGER.CSV"):
        start("report", [str(tmp_path / "runs"), "--ledger", str(tmp_path / name), *out])
    table = (tmp_path / "ledger.csv").read_text()
    assert list(csv.DictReader(table.splitlines())) == [
        {title: "" if text == "–" else text for title, text in row.items()} for row in made
    ]
    assert (tmp_path / "LEDGER.CSV").read_text() == table
    text = (tmp_path / "ledger.md").read_text()
    commands = [row.pop("Command") for row in made]
    assert rows(text) == [{"#": str(n), **row} for n, row in enumerate(made, 1)]
    assert text.endswith("".join(f"{n}. `{line}`\n" for n, line in enumerate(commands, 1)))


@pytest.mark.parametrize(
    ("same", "changes"),
    [
        (True, {}),
        (True, {"precision": "fp32", "data": {"name": "cifar100", "root": "/elsewhere"}}),
        (False, {"backbone": "vit_base_patch16_224.augreg_in21k"}),
        (False, {"data": {"name": "imagenet-r"}}),
        (False, {"data": {"name": "cifar100", "check_counts": False}}),
        (False, {"increment": 10}),
        (False, {"seed": 1994}),
        (False, {"order": "natural"}),
        (False, {"normalize": "none"}),
        (False, {"options": {"alpha": 2.0}}),
        (False, {"method": "tuna"}),
        (False, {"done": 3}),
        (False, {"declares": {}}),  # nothing says what its defaults were
    ],
)
def test_expectations_stand_beside_the_same_setting_only(tmp_path, same, changes):
    make_run(tmp_path / "run", **{"declares": DEFAULTS, **changes})
    (row,) = ledger(find_runs([tmp_path]), [RECIPE])
    assert row["Expected"] == ("79.17 / 69.22" if same else "–")
    assert row["Source"] == ("somebody" if same else "–")


@pytest.mark.parametrize(
    ("expected", "verified"),
    [
        ({"average": 81.0, "final": 82.9, "source": "somebody"}, "yes"),
        ({"average": 81.0, "final": 83.1, "source": "somebody"}, "no: off by 0.60"),
        ({"average": 81.25, "final": 82.5, "source": "docs/results.md; one run"}, "no"),
        ({"final": 82.5, "source": "somebody"}, "yes"),
        ({"average": 81.25, "final": 82.5}, "no"),
        ({}, "no"),
    ],
)
def test_a_number_is_verified_by_a_close_one_from_elsewhere(tmp_path, expected, verified):
    folder = make_run(tmp_path / "run", tasks=2, declares=DEFAULTS)

    def by_hand(content):
        put_counts(content, [[8], [6, 27]], [[10], [10, 30]])

    rewrite(folder, "results.json", by_hand)
    (row,) = ledger(find_runs([tmp_path]), [replace(RECIPE, expected=expected)])
    assert (row["Average"], row["Final"], row["Verified"]) == ("81.25", "82.50", verified)


def test_an_expected_way_to_predict_is_that_ways(tmp_path):
    declares = {"prediction": "nme", "defaults": {}}
    make_run(tmp_path / "run", method="icarl", declares=declares, others=["cnn"])
    asked = {**RECIPE.asked, "method": {"name": "icarl"}}
    recipe = Recipe("icarl", asked, {"average": 1, "final": 2, "prediction": "cnn"})
    nme, cnn = ledger(find_runs([tmp_path]), [recipe])
    assert (nme["Method"], nme["Expected"]) == ("icarl [nme]", "–")
    assert (cnn["Method"], cnn["Expected"]) == ("icarl [cnn]", "1 / 2")
    assert cnn["Inference images/s"] == "–"


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(method={"name": "daf", "alpha": 2.0, "gamma_consistent": True}),
        RunConfig(
            method={"name": "simplecil"},
            data={"name": "glyphs", "train_per_class": 3},
            increment=[30, 32],
            order="natural",
            precision="bf16",
            weights="a file.safetensors",
        ),
    ],
)
def test_the_command_makes_the_same_run(tmp_path, config):
    whole = resolved(config)
    folder = make_run(tmp_path / "run")
    rewrite(folder, "config.json", lambda content: content.update(config=asdict(whole)))

    def defaults(content):
        usual = resolved(RunConfig(method={"name": config.method["name"]})).method
        del usual["name"]
        content["method"]["defaults"] = usual

    rewrite(folder, "results.json", defaults)
    words = shlex.split(command_of(load_run(folder)))
    assert words[:2] == ["dafuse", "run"]
    assert resolved(parse(words[2:])).hash() == whole.hash()
    assert len(words) < 12  # it says what is changed, not everything


def test_recipes_never_run_are_listed_where_asked(tmp_path, capsys):
    backbone = "vit_base_patch16_224.augreg_in21k"
    run = {"backbone": backbone, "normalize": "none", "declares": {"defaults": {}}}
    make_run(tmp_path / "runs" / "a", method="simplecil", **run)
    file = tmp_path / "ledger.md"
    out = ["--out", str(tmp_path / "out")]
    start("report", [str(tmp_path / "runs"), "--ledger", str(file), "--with-recipes", *out])
    assert f"wrote {file}" in capsys.readouterr().out
    ours, *others = rows(file.read_text())
    said = expected(RECIPES / "simplecil-cifar100.yaml")
    assert ours["Status"] == "finished"
    assert ours["Expected"] == f"{said['average']} / {said['final']}"
    assert {row["Status"] for row in others} == {"not run"}
    assert {row["Backbone"] for row in others} == {backbone}
    names = [path.stem for path in RECIPES.glob("*.yaml")]
    on_vit_b = [name for name in names if read_recipe(name)["backbone"] == backbone]
    assert len(others) == len(on_vit_b) - 1
    paper = [row for row in others if row["Method"] == "daf-paper" and row["Data"] == "cifar100"]
    assert paper[0]["Source"] == "the paper, table 1; not run here"
    assert "`dafuse run daf-paper-cifar100`" in file.read_text()
    assert "`dafuse run simplecil-cifar100`" not in file.read_text()

    start("report", [str(tmp_path / "runs"), "--ledger", str(file), *out])
    assert len(rows(file.read_text())) == 1


def test_speeds_are_left_out_where_asked(tmp_path):
    make_run(tmp_path / "runs" / "a")
    file, out = tmp_path / "ledger.md", ["--out", str(tmp_path / "out")]
    start("report", [str(tmp_path / "runs"), "--ledger", str(file), *out])
    (whole,) = rows(file.read_text())
    start(
        "report",
        [str(tmp_path / "runs"), "--ledger", str(file), "--no-speeds", "--with-recipes", *out],
    )
    bare = rows(file.read_text())[0]
    speeds = {"Training images/s", "Inference images/s"}
    assert bare == {key: value for key, value in whole.items() if key not in speeds}
    assert speeds < whole.keys()


def test_wrong_requests_are_told(tmp_path):
    make_run(tmp_path / "run")
    out = ["--out", str(tmp_path / "out")]
    for about_a_ledger in ("--with-recipes", "--no-speeds"):
        with pytest.raises(DafuseError, match="say --ledger FILE"):
            start("report", [str(tmp_path / "run"), about_a_ledger, *out])
    with pytest.raises(DafuseError, match="cannot write"):
        start(
            "report", [str(tmp_path / "run"), "--ledger", str(tmp_path / "no" / "where.md"), *out]
        )

"""The table over runs: its numbers, and its text in every format."""

import csv
import math
import re
import statistics
from io import StringIO

import numpy as np
import pytest

from dafuse.report import tables
from dafuse.report.measures import human_bytes
from dafuse.report.runs import find_runs
from helpers.run_folders import make_run, put_counts, rewrite


def test_numbers_equal_hand_computed_ones(tmp_path):
    folder = make_run(tmp_path / "run", tasks=2)

    def by_hand(content):
        put_counts(content, [[8], [6, 27]], [[10], [10, 30]])
        content["tasks"] = [
            {
                "task": t,
                "seconds": {"train": 4.0 if t else 40.0, "align": 1.0, "evaluate": 0.5},
                "images": {"train": 100, "evaluate": images},
                "kept_bytes": {"modules": 1_000_000, "statistics": 500_000 * (t + 1)},
                "calibration_error": (0.05, 0.02)[t],
                "correct_then": ([8], [7, 27])[t],
                "diagnosis": {},
            }
            for t, images in enumerate((10, 40))
        ]

    rewrite(folder, "results.json", by_hand)
    table = tables.make_table(find_runs([tmp_path]))
    means = {key: cell.mean for key, cell in table.rows[0].cells.items()}
    assert means == pytest.approx(
        {
            "average": (80 + 82.5) / 2,
            "final": 82.5,
            "average_per_task": (80 + 75) / 2,
            "final_per_task": 75,
            "stability": 60,
            "plasticity": 85,
            "forgetting": 20,
            "forgetting_alone": 80 - 70,
            "calibration_error": 0.05,  # where it is largest
            "train_speed": 100 / 5,  # of the second task: the first pays for compiling
            "inference_speed": 80,
            "seconds": 47,
            "kept_bytes": 2_000_000,
            "keeps_images": 0,
            "passes": 1,
        }
    )
    row = dict(zip(tables.header(), tables.plain_rows(table)[0], strict=True))
    assert row["Method"] == "daf"
    assert (row["Runs"], row["Tasks"]) == ("1", "2")
    assert (row["Average"], row["Final"]) == ("81.25", "82.50")
    assert (row["Kept"], row["Passes"], row["Seconds"]) == ("2 MB", "1", "47")
    assert row["Keeps images"] == "no"


def test_training_speed_is_of_the_later_tasks_that_train(tmp_path):
    def train_in(*numbers):
        def by_hand(content):
            for number, task in enumerate(content["tasks"], 1):
                kind = "train" if number in numbers else "statistics"
                task |= {"seconds": {kind: 4.0, "align": 1.0}, "images": {kind: 100}}

        return by_hand

    folder = make_run(tmp_path / "run", tasks=3)
    speeds = []
    for numbers in ((1, 3), (1,)):  # the second as APER does
        rewrite(folder, "results.json", train_in(*numbers))
        (row,) = tables.make_table(find_runs([tmp_path])).rows
        speeds.append(row.cells["train_speed"].mean)
    assert speeds == pytest.approx([20, math.nan], nan_ok=True)


def test_training_speed_of_a_single_task_is_its_own(tmp_path):
    folder = make_run(tmp_path / "run", tasks=1)

    def by_hand(content):
        content["tasks"][0] |= {"seconds": {"train": 4.0, "align": 1.0}, "images": {"train": 100}}

    rewrite(folder, "results.json", by_hand)
    (row,) = tables.make_table(find_runs([tmp_path])).rows
    assert row.cells["train_speed"].mean == 20


def test_another_way_to_predict_has_accuracies_but_no_speeds(tmp_path):
    folder = make_run(
        tmp_path / "run",
        method="icarl",
        tasks=2,
        declares={"prediction": "nme", "keeps_images": True},
        others=["cnn"],
    )

    def by_hand(content):
        put_counts(content, [[8], [6, 27]], [[10], [10, 30]])
        content["others"]["cnn"] = [[9], [3, 24]]

    rewrite(folder, "results.json", by_hand)
    table = tables.make_table(find_runs([tmp_path]))
    first, second = table.rows
    assert first.cells["final"].mean == pytest.approx(82.5)
    known = {key: cell.mean for key, cell in second.cells.items() if not math.isnan(cell.mean)}
    assert known == pytest.approx(
        {
            "average": (90 + 67.5) / 2,
            "final": 67.5,
            "average_per_task": (90 + 55) / 2,
            "final_per_task": 55,
            "stability": 30,
            "plasticity": 85,
            "forgetting": 60,
            "keeps_images": 1,
        }
    )
    first, second = (
        dict(zip(tables.header(), row, strict=True)) for row in tables.plain_rows(table)
    )
    assert (first["Method"], first["Keeps images"]) == ("icarl [nme]", "yes")
    assert (second["Method"], second["Tasks"]) == ("icarl [cnn]", "2")
    for title in ("Training images/s", "Inference images/s", "Seconds", "Kept", "Passes"):
        assert first[title] != "–"
        assert second[title] == "–"
    assert "| icarl [cnn] |" in tables.markdown(table)
    assert "icarl [cnn] & 1" in tables.latex(table)
    assert [row["method"] for row in csv.DictReader(tables.csv(table).splitlines())] == [
        "icarl [nme]",
        "icarl [cnn]",
    ]


def test_mean_and_sample_deviation_over_seeds(tmp_path):
    for seed in range(1993, 1998):
        make_run(tmp_path / str(seed), seed=seed)
    runs = find_runs([tmp_path])
    finals = [run.matrix.metrics()["final"] for run in runs]
    (row,) = tables.make_table(runs).rows
    assert (row.runs, row.seeds) == (5, 5)
    assert row.cells["final"].mean == pytest.approx(np.mean(finals))
    assert row.cells["final"].std == pytest.approx(np.std(finals, ddof=1))
    text = f"{np.mean(finals):.2f} ± {statistics.stdev(finals):.2f}"
    assert text in tables.markdown(tables.make_table(runs))


def test_repeated_seed_is_not_passed_off_as_a_seed(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert tables.plain_rows(tables.make_table(find_runs([tmp_path])))[0][1] == "2 (seeds: 1)"


def test_csv_parses_back(tmp_path):
    make_run(tmp_path / "1", options={"rule": 'last, "or" so'})
    make_run(tmp_path / "2", tasks=4, done=1)
    table = tables.make_table(find_runs([tmp_path]))
    rows = list(csv.DictReader(tables.csv(table).splitlines()))
    assert [row["method"] for row in rows] == [row.name for row in table.rows]
    for read, row in zip(rows, table.rows, strict=True):
        for key, cell in row.cells.items():
            assert read[key] == ("" if math.isnan(cell.mean) else repr(cell.mean))
            assert read[f"{key}_deviation"] == ""
    assert (rows[1]["tasks"], rows[1]["tasks_total"]) == ("1", "4")
    assert rows[1]["stability"] == rows[1]["forgetting"] == ""  # there is no earlier task


def test_latex_and_markdown_are_escaped(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / str(seed), seed=seed, options={"rule": "a_b & 50% $x$ {} # ~ ^ \\ |"})
    make_run(tmp_path / "3", done=1)
    table = tables.make_table(find_runs([tmp_path]))
    latex = tables.latex(table)
    assert r"a\_b \& 50\% \$x\$ \{\} \# \textasciitilde{} \textasciicircum{}" in latex
    assert r"$\pm$" in latex
    assert "±" not in latex
    assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    columns = len(tables.header())
    for line in latex.splitlines()[2:-2]:
        if "&" in line:
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
    for line in tables.markdown(table).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == columns + 1


@pytest.mark.parametrize("rows", [1, 6])
def test_terminal_table_shows_all_of_few_and_the_essence_of_many(tmp_path, rows):
    from rich.console import Console

    for number in range(rows):
        make_run(tmp_path / str(number), options={"rule": f"[red]{number}"})
    table = tables.make_table(find_runs([tmp_path]))
    console = Console(width=100, record=True, file=StringIO())
    console.print(tables.terminal(table))
    text = console.export_text()
    shown = tables.header() if rows <= 4 else tables.FOR_TERMINAL
    for cells in tables.plain_rows(table):
        row = dict(zip(tables.header(), cells, strict=True))
        assert all(title in text and row[title] in text for title in shown)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (236e6, "236 MB"),
     (999_999, "1 MB"), (5e12, "5000 GB")],
)  # fmt: skip
def test_human_bytes(count, text):
    assert human_bytes(count) == text


def test_what_trains_nothing_has_no_speed_of_training(tmp_path):
    """Unlike a speed that is not known, as of a run whose training was replayed."""

    def nothing(content):
        for task in content["tasks"]:
            del task["images"]["train"]

    for name in ("lift", "finetune"):
        rewrite(make_run(tmp_path / name, method=name), "results.json", nothing)
    rewrite(tmp_path / "finetune", "config.json", lambda c: c["config"].update(replay="runs/x"))
    rows = tables.plain_rows(tables.make_table(find_runs([tmp_path])))
    speeds = {row[0]: row[tables.header().index("Training images/s")] for row in rows}
    assert speeds == {"finetune": "–", "lift": "none"}

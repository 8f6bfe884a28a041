"""Two options varied: a table of one against the other, whose empty cells are seen."""

from pathlib import Path

import pytest

from dafuse.report.outputs import report
from dafuse.report.page import page
from dafuse.report.runs import find_runs
from dafuse.report.tables import grid, grids
from helpers.run_folders import make_run


def made(folder: Path, *settings: tuple[str, str], **more: object) -> Path:
    for init, rule in settings:
        options = {"name": "daf", "init": init, "rule": rule, "alpha": 1.25, **more}
        make_run(folder / f"{init}-{rule}", method="daf", options=options)
    return folder


def test_one_option_down_the_other_across(tmp_path: Path) -> None:
    made(tmp_path / "runs", ("random", "last"), ("random", "mean"), ("robust", "last"))
    runs = find_runs([tmp_path / "runs"])
    crossed = grid(runs)
    assert crossed is not None
    head, rows = crossed
    assert head == ["Average / Final: rule, and init across", "random", "robust"]
    assert [row[0] for row in rows] == ["last", "mean"]
    assert rows[1][2] == "missing"
    average, final = rows[0][1].split(" / ")
    assert float(average) > 0
    assert float(final) > 0
    assert "rule, and init across" in page(runs)
    report([str(tmp_path / "runs")], str(tmp_path / "out"))
    assert "| mean | " in (tmp_path / "out/grid.md").read_text()


def test_an_unfinished_run_says_how_far_it_is(tmp_path: Path) -> None:
    made(tmp_path, ("random", "last"), ("random", "mean"), ("robust", "last"))
    options = {"name": "daf", "init": "robust", "rule": "mean", "alpha": 1.25}
    make_run(tmp_path / "begun", method="daf", options=options, done=2)
    crossed = grid(find_runs([tmp_path]))
    assert crossed is not None
    assert any("2 of" in cell for row in crossed[1] for cell in row)


@pytest.mark.parametrize(
    "settings",
    [
        [("random", "last"), ("random", "mean")],  # one option
        [("random", "last"), ("random", "last")],  # none
        [("random", "last"), ("robust", "dynamic"), ("previous", "mean")],  # a diagonal
    ],
)
def test_nothing_else_is_taken_for_a_grid(tmp_path: Path, settings: list[tuple[str, str]]) -> None:
    assert grid(find_runs([made(tmp_path, *settings)])) is None


def test_three_options_are_no_grid(tmp_path: Path) -> None:
    made(tmp_path / "a", ("random", "last"), ("robust", "mean"))
    made(tmp_path / "b", ("robust", "last"), alpha=2.0)
    assert grid(find_runs([tmp_path])) is None


def test_of_several_methods_each_has_its_own(tmp_path: Path) -> None:
    """More than two options differ: the first runs down, all others together run across."""
    for features in ("last", "all"):
        for width, head in ((0, "ridge"), (9, "ridge"), (0, "lda")):
            options = {"name": "lift", "features": features, "width": width, "head": head}
            make_run(tmp_path / f"{features}-{width}-{head}", method="lift", options=options)
    make_run(tmp_path / "simplecil", method="simplecil")
    runs = find_runs([tmp_path])
    assert grid(runs) is None
    ((head_row, rows),) = grids(runs)
    assert head_row[0] == "lift, Average / Final: features, and width, head across"
    assert sorted(head_row[1:]) == ["0, lda", "0, ridge", "9, ridge"]
    assert [row[0] for row in rows] == ["all", "last"]

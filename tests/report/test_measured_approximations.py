"""Tables and figures of what was measured of DAF's approximations, from the run's folder alone."""

import math
from pathlib import Path

import pytest

from dafuse.errors import DafuseError
from dafuse.report.drawing import NothingToDraw
from dafuse.report.measured_approximations import (
    AGREEMENT,
    FILE,
    agreement_rows,
    fisher_against_hessian,
    how_measured,
    loss_along_path,
    path_rows,
    read_measurement,
)
from dafuse.report.outputs import report
from dafuse.report.runs import load_run
from helpers.run_folders import add_measurement, make_run, rewrite


@pytest.fixture
def folder(tmp_path):
    return add_measurement(make_run(tmp_path / "run"))


def test_rows_are_means_over_tasks_with_their_range(folder):
    found = read_measurement(folder)
    rows = agreement_rows(found)
    assert len(rows) == 5 * 5  # comparisons x the whole and four tensors
    first = dict(zip(AGREEMENT, rows[0], strict=True))
    assert (first["Part"], first["Entries"]) == ("all", "40")
    assert first["Rank correlation"] == "0.7 (0.6 to 0.8)"
    assert first["Negative (%)"] == "12 (12 to 12)"
    head, paths = path_rows(found)
    assert [len(row) for row in paths] == [len(head)] * 2
    assert paths[0] == ["2", "0.4", "0.6", "0.5", "0.7", "0.59", "500.4"]


def test_what_is_undefined_is_shown_as_unknown(folder):
    def undefined(content):
        for task in content["tasks"]:
            task["agreement"]["batch_sample"]["up.bias"]["rank_correlation"] = math.nan
            task["path"] = None

    rewrite(folder, "approximations.json", undefined)
    found = read_measurement(folder)
    assert agreement_rows(found)[-1][3] == "–"
    assert path_rows(found)[1] == []
    with pytest.raises(NothingToDraw):
        loss_along_path(load_run(folder))
    assert fisher_against_hessian(load_run(folder))


def test_the_report_has_it_and_says_what_is_missing(folder, tmp_path):
    add_measurement(folder, tasks=(1,), planned=(1, 2, 3))
    assert "Missing: 2 of 3 tasks" in how_measured(read_measurement(folder))
    told = report([str(folder)], str(tmp_path / "out"))
    assert "approximations.md" in told
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Missing: 2 of 3 tasks" in html
    assert "Loss on the way to the fused adapter" in html
    assert (
        "| Fisher for Hessian (exact) | all |"
        in (tmp_path / "out" / "approximations.md").read_text()
    )


def test_figures_tell_their_numbers(folder, tmp_path):
    run = load_run(folder)
    drawn = loss_along_path(run).svg()
    assert "in task 2 the loss changes by +0.2, by the Fisher diagonal +0.1" in drawn
    assert "task 4, loss 0.4" in drawn
    assert "rank correlation 0.80" in fisher_against_hessian(run).svg()
    loss_along_path(run).write_png(tmp_path / "path.png")
    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_measurement_has_nothing_of_it(tmp_path):
    run = load_run(make_run(tmp_path / "run"))
    assert read_measurement(run.folder) is None
    with pytest.raises(NothingToDraw, match=r"no approximations\.json"):
        fisher_against_hessian(run)
    assert "approximations" not in report([str(run.folder)], str(tmp_path / "out"))
    with pytest.raises(NothingToDraw, match=r"no approximations\.json"):
        loss_along_path(run)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda content: content.update(format=2), "not of this version"),
        (lambda content: content.pop("planned"), "lacks planned; delete it to measure again"),
    ],
)
def test_a_strange_file_is_named(folder, damage, told):
    rewrite(folder, "approximations.json", damage)
    with pytest.raises(DafuseError, match=rf"approximations\.json.*{told}"):
        read_measurement(folder)


def test_a_report_goes_on_without_a_damaged_measurement_and_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / FILE).write_text('{"broken')
    told = report([str(folder)], out=str(tmp_path / "report"))
    assert "skipped" in told
    assert "delete it to measure again" in told
    assert "How good the approximations are" not in (tmp_path / "report/report.html").read_text()

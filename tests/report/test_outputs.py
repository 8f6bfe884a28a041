"""Outputs that an experiment declares: each is written under its name, or said not to be."""

from pathlib import Path

from dafuse.report.outputs import write_outputs
from dafuse.report.runs import find_runs
from helpers.run_folders import make_run

DEFAULTS = {"defaults": {"alpha": 1.25, "rule": "dynamic", "init": "robust"}}


def test_tables_and_a_figure_under_one_name(tmp_path: Path) -> None:
    for alpha in (0.5, 1.0, 2.0):
        make_run(tmp_path / f"runs/{alpha}", options={"alpha": alpha}, declares=DEFAULTS)
    runs, file = find_runs([str(tmp_path / "runs")]), tmp_path / "v1.2"
    lines = write_outputs(runs, file, "v1", ("table",), "sweep", ["daf-alpha-3.0, seed 1"])
    assert lines == [f"table: {tmp_path}/v1.2.md", f"figure: {tmp_path}/v1.2.png"]
    text = (tmp_path / "v1.2.md").read_text()
    assert "| daf (alpha=2.0) |" in text
    assert text.endswith("\nMissing: daf-alpha-3.0, seed 1\n")
    assert (tmp_path / "v1.2.png").read_bytes().startswith(b"\x89PNG")


def test_what_these_runs_do_not_make_yet_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one", declares=DEFAULTS)
    (tmp_path / "ablation.png").write_text("of other runs")
    runs, file = find_runs([str(tmp_path / "runs")]), tmp_path / "ablation"
    lines = write_outputs(runs, file, "some", ("grid", "table"), "efficiency", missing=[])
    assert lines == [
        f"table: {tmp_path}/ablation.md",
        "no grid: these runs do not make one",
        "no figure: the figure needs 3 methods with both speeds on the same data",
    ]
    assert (tmp_path / "ablation.md").read_text().startswith("# some\n\n| Method |")
    assert not (tmp_path / "ablation.png").exists()

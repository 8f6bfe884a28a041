"""A report says which runs and measurements it cannot read, whatever is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from dafuse.report import measured_approximations
from dafuse.report.runs import find_runs
from helpers.run_folders import add_measurement, make_run, rewrite


def test_a_run_without_its_configuration_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / name)
    (tmp_path / "one" / "config.json").unlink()
    said: list[str] = []
    (left,) = find_runs([tmp_path], said.append)
    assert left.folder == tmp_path / "two"
    assert said == [f"skipped: {tmp_path / 'one'} is not a run folder: it has no config.json"]


def _change(value: Any, *keys: Any) -> Any:
    def change(content: dict[str, Any]) -> None:
        inside: Any = content
        for key in keys[:-1]:
            inside = inside[key]
        if value is None:
            del inside[keys[-1]]
        else:
            inside[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _change(None, "tasks", 1, "agreement", "batch_sample", "all", "ratio_of_sums"),
        _change("much", "tasks", 1, "agreement", "fisher_exact", "all", "rank_correlation"),
        _change(None, "tasks", 1, "agreement", "fisher_exact", "up.bias"),
        _change({"all": 3}, "tasks", 0, "agreement", "rule_exact"),
        _change([], "tasks", 0, "path", "true"),
        _change(None, "tasks", 0, "path", "rule"),
        _change({}, "tasks"),
        _change(3, "options"),
    ],
)
def test_a_measurement_that_makes_no_sense_is_named(tmp_path: Path, change: Any) -> None:
    folder = add_measurement(make_run(tmp_path / "run"))
    assert not list(measured_approximations.damages([folder]))
    rewrite(folder, "approximations.json", change)
    (said,) = measured_approximations.damages([folder])
    assert said.startswith(f"{folder / 'approximations.json'} is damaged: ")
    assert said.endswith("; delete it to measure again")

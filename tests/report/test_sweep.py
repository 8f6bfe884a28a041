"""One option varied: found where all else is equal, drawn over its values."""

import pytest

from dafuse.report.comparisons import sweep, swept_option
from dafuse.report.drawing import NothingToDraw
from dafuse.report.outputs import report
from dafuse.report.page import page
from dafuse.report.runs import find_runs
from helpers.run_folders import make_run


def runs_with(tmp_path, *methods, seeds=(1,)):
    for number, method in enumerate(methods):
        for seed in seeds:
            name = method["name"]
            options = {} if name != "daf" else {"options": method}
            make_run(tmp_path / f"{number}-{seed}", seed=seed, method=name, **options)
    return find_runs([tmp_path])


def daf(**options):
    return {"name": "daf", "alpha": 1.25, "rule": "dynamic", **options}


def test_the_varied_option_is_drawn_in_order_of_its_values(tmp_path):
    runs = runs_with(tmp_path, daf(alpha=3.0), daf(alpha=0.5), daf(alpha=1.0), seeds=(1, 2))
    assert swept_option(runs) == "method.alpha"
    drawn = sweep(runs).svg()
    assert "Accuracies in percent over method.alpha. 0.5: plasticity" in drawn
    assert drawn.index("; 1: plasticity") < drawn.index("; 3: plasticity")
    for name in ("Plasticity", "Average", "Final", "Stability"):
        assert name in drawn
    assert "Over alpha" in page(runs)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert (tmp_path / "out" / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "methods",
    [
        [daf(alpha=1.0), daf(alpha=2.0)],  # too few values
        [daf(alpha=1.0), daf(alpha=2.0), daf(alpha=3.0, rule="mean")],  # two options differ
        [daf(rule="mean"), daf(rule="last"), daf(rule="static")],  # no numbers
        [daf(alpha=1.0), daf(alpha=2.0), {"name": "simplecil"}],
    ],
)
def test_nothing_else_is_taken_for_it(tmp_path, methods):
    runs = runs_with(tmp_path, *methods)
    assert swept_option(runs) == ""
    with pytest.raises(NothingToDraw, match="differ in one option"):
        sweep(runs)
    assert "Over alpha" not in page(runs)

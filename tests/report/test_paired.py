"""Paired differences to DAF, against numbers worked out by hand."""

import math

import pytest

from dafuse.report.page import page
from dafuse.report.paired import header, pairings, plain_rows, t_quantile
from dafuse.report.runs import find_runs
from helpers.run_folders import make_run, put_counts, rewrite


def put(tmp_path, name, seed, first, last, **options):
    """A run of two tasks of 100 test images each: so many right after the first, and at the end."""
    folder = make_run(tmp_path / f"{name}-{seed}", tasks=2, seed=seed, method=name, **options)

    def by_hand(content):
        put_counts(content, [[first], [last, last]], [[100], [100, 100]])

    rewrite(folder, "results.json", by_hand)
    return folder


def test_differences_by_hand(tmp_path):
    for seed, (last, better) in {1: (60, 62), 2: (70, 76), 3: (50, 51)}.items():
        put(tmp_path, "daf", seed, 80, last)
        put(tmp_path, "ranpac", seed, 80, better)
    (found,) = pairings(find_runs([tmp_path]))
    assert (found.name, found.reference, found.seeds) == ("ranpac", "daf", [1, 2, 3])
    assert found.missing == {}
    # final: 2, 6, 1, of mean 3 and squares about it 1, 9, 4; the average is half of it
    deviation = math.sqrt(14 / 2)
    margin = 4.302653 * deviation / math.sqrt(3)
    assert found.differences["final"] == pytest.approx((3, deviation, margin), rel=1e-6)
    assert found.differences["average"] == pytest.approx((1.5, deviation / 2, margin / 2), rel=1e-6)
    (row,) = plain_rows([found])
    assert len(row) == len(header())
    assert row[:2] == ["ranpac less daf", "3"]
    assert row[4:] == ["+3.00 ± 2.65", "-3.57 to +9.57", "none"]


def test_missing_pairs_are_said(tmp_path):
    for seed in (1, 2, 3):
        put(tmp_path, "daf", seed, 80, 60)
    put(tmp_path, "tuna", 3, 80, 65)
    put(tmp_path, "tuna", 4, 80, 65)
    put(tmp_path, "mos", 9, 80, 65)
    make_run(tmp_path / "partial", method="tuna", tasks=2, done=1, seed=1)  # is no pair yet
    mos, tuna = sorted(pairings(find_runs([tmp_path])), key=lambda found: found.name)
    assert tuna.seeds == [3]
    assert tuna.missing == {"tuna": [1, 2], "daf": [4]}
    assert tuna.differences["final"].mean == 5
    assert math.isnan(tuna.differences["final"].margin)
    assert plain_rows([tuna])[0][1:] == ["1", "+2.50", "–", "+5.00", "–", "tuna: 1, 2; daf: 4"]
    assert plain_rows([mos])[0][1:4] == ["0", "–", "–"]
    html = page(find_runs([tmp_path]))
    assert "tuna less daf" in html
    assert "tuna: 1, 2; daf: 4" in html


def test_the_reference_is_plain_daf_on_the_same_stream(tmp_path):
    defaults = {"defaults": {"alpha": 1.25, "rule": "dynamic"}}
    for seed in (1, 2):
        make_run(tmp_path / f"a-{seed}", seed=seed, options={"rule": "mean"}, declares=defaults)
        make_run(tmp_path / f"b-{seed}", seed=seed, declares=defaults)
        make_run(tmp_path / f"c-{seed}", seed=seed, method="mos", backbone="another")
    (found,) = pairings(find_runs([tmp_path]))
    assert found.name.startswith("daf (")
    assert "rule=mean" in found.name
    assert "rule" not in found.reference


def test_one_seed_makes_no_pairs(tmp_path):
    make_run(tmp_path / "daf")
    make_run(tmp_path / "mos", method="mos")
    assert pairings(find_runs([tmp_path])) == []
    assert "less daf" not in page(find_runs([tmp_path]))


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (9, 2.262157), (30, 2.042272)],
)
def test_students_t_as_tabulated(freedom, t):
    assert t_quantile(freedom) == pytest.approx(t, abs=1e-6)
    assert t_quantile(4, 0.99) == pytest.approx(4.604095, abs=1e-6)

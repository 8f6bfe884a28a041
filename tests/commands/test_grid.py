"""Grids: what commas separate, which runs it makes, that they are those of single commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from dafuse.cli import start
from dafuse.commands.grid import combinations, seeds_of
from dafuse.commands.run import parse
from dafuse.engine.run import resolved, run
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.sealed import read_sealed
from helpers.small_runs import enter_small_world

QUICK = ["--method.epochs", "1", "--method.batch_size=8", "--method.align_epochs=1"]
SHARED = ["--data", "small.npz", "--increment", "2", "--device", "cpu"]
KINDS = {"--increment": True, "--method.alpha": True, "--order": True, "--out": False}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_small_world(tmp_path, monkeypatch, [3] * 4)


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        ("--method.alpha 1", ["--method.alpha 1"]),
        ("--method.alpha=1,2", ["--method.alpha=1", "--method.alpha=2"]),
        ("--method_alpha 1,2", ["--method_alpha 1,2"]),  # no such option: left to be refused
        ("--method.alpha 1,2 --x", ["--method.alpha=1 --x", "--method.alpha=2 --x"]),
        ("--method.alpha 1,2 --method.alpha 3", ["--method.alpha 1,2 --method.alpha 3"]),
        ("--increment [10,5]", ["--increment [10,5]"]),
        ("--increment [10,5],5", ["--increment=[10,5]", "--increment=5"]),
        ("--order seed,natural", ["--order=seed", "--order=natural"]),
        ("--out a,b", ["--out a,b"]),
        ("--backbone small,base", ["--backbone=small", "--backbone=base"]),
        ("--method daf,lift", ["--method=daf", "--method=lift"]),
        ("--data glyphs,cifar100", ["--data=glyphs", "--data=cifar100"]),
        ("--data a,b.npz", ["--data a,b.npz"]),  # a path
        (
            "--increment 2,5 --method.alpha=1,2",
            [f"--increment={i} --method.alpha={a}" for i in (2, 5) for a in (1, 2)],
        ),
    ],
)
def test_commas_separate_what_is_not_free_text(typed: str, runs: list[str]) -> None:
    assert [" ".join(words) for words in combinations(typed.split(), KINDS)] == runs


def test_seeds_are_a_count_or_a_list() -> None:
    assert seeds_of("3", 1993) == [1993, 1994, 1995]
    assert seeds_of("1993,7", 5) == [1993, 7]
    assert seeds_of("7,", 5) == [7]
    assert seeds_of(None, 5) == [5]


def counted(folder: Path) -> dict[str, Any]:
    """Return what a run answered and keeps; a replay has no losses and fewer times."""
    results = read_sealed(folder / "results.json", "")
    kept = [task["kept_bytes"] for task in results["tasks"]]
    return {**{key: results[key] for key in ("correct", "total", "confusion")}, "kept": kept}


@pytest.mark.usefixtures("world")
def test_a_grid_makes_the_runs_of_single_commands_and_trains_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda *a, **k: (fitted.append(1), fit(*a, **k))[1])
    words = [*SHARED, *QUICK, "--method.alpha", "1,2", "--seeds", "2"]
    start("run", words)
    assert len(fitted) == 2 * 2  # seeds x tasks, not x alphas
    told = capsys.readouterr().out
    assert "95 % interval" in told
    assert "missing" not in told
    singles = [
        resolved(parse([*SHARED, *QUICK, f"--method.alpha={alpha}", f"--seed={seed}"]))
        for alpha in (1, 2)
        for seed in (1993, 1994)
    ]
    assert {each.folder() for each in singles} == set(Path("runs").glob("daf-*"))
    (page,) = Path("runs").glob("grid-daf-arrays-*.html")
    table = page.with_suffix(".md").read_text()
    assert "| Method | Seeds | Average | Average, 95 % interval |" in table
    assert "| daf (alpha=2.0) | 2 |" in table
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for each in singles[1:3]:  # one that recorded, one that replayed
        alone = run(parse([*SHARED, *QUICK, f"--method.alpha={each.method['alpha']}",
                           f"--seed={each.seed}", "--out=alone" + each.name()]))  # fmt: skip
        assert counted(alone) == counted(each.folder())
    fitted.clear()
    start("run", words)
    assert not fitted
    assert "is finished; nothing to compute" in capsys.readouterr().err
    assert list(Path("runs").glob("grid-*.html")) == [page]
    start("run", [*words, "--dry-run"])
    assert "4 runs: about 0 s to go" in capsys.readouterr().out


@pytest.mark.usefixtures("world")
def test_a_grid_of_one_is_a_single_run(capsys: pytest.CaptureFixture[str]) -> None:
    start("run", ["--method", "simplecil", *SHARED, "--seeds", "1"])
    (folder,) = Path("runs").iterdir()
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "config.json").read_text())["config"]["record"] is False
    assert "95 % interval" not in capsys.readouterr().out


@pytest.mark.usefixtures("world")
def test_what_is_opened_may_vary_and_equal_values_are_one_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start("run", ["--method", "simplecil", *SHARED, "--normalize", "half,none,half"])
    assert "2/2: simplecil-normalize-none, seed 1993" in capsys.readouterr().err
    assert len(list(Path("runs").glob("simplecil-*"))) == 2


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--seeds x", "--seeds takes how many seeds, such as 5, or a list, such as 1993,7; not x"),
        ("--seeds 0", "--seeds 0: how many seeds must be from 1 to 10000"),
        ("--seeds 1,2 --seed 4", "either --seed or a list of --seeds, not both"),
        ("--seeds 2 --seed 4,5", "either --seed or a list of --seeds, not both"),
        ("--seeds=-1,2", "seed must be at least 0"),
        ("--method.alpha 1,,2", "--method.alpha 1,,2: there is nothing between two commas"),
        ("--method.alpha 1,x", "--method.alpha must be a number, not x"),
        ("--method.epochs 1,0", "method.epochs must be at least 1, not 0"),
        ("--increment 2,0", "a task needs at least one class, not 0"),
        ("--increment 2,40", "a task of 40 classes needs more than the 4 there are"),
        ("--backbone small,nowhere", "no backbone is called nowhere"),
        ("--method daf,nothing", "no method is called 'nothing'"),
        ("--seeds 2 --record", "--record is not for a grid: it records what it can use again"),
        ("--seeds 2 --out small.npz", "--out small.npz is not a folder"),
        ("--seeds 2 --parallel 0", "--parallel must be from 1 to 1024, not 0"),
        ("--seeds 2 --parallel 2 --cluster", "either --parallel or --cluster, not both"),
        ("--seeds 2 --cpus 2", "--cpus is about a task of a cluster: say --cluster, too"),
        ("--seeds 2 --cluster --gpu-share 1.5", "--gpu-share must be a share from 0 to 1, or a"),
    ],
)
def test_wrong_grids_are_told_in_one_line_before_anything_runs(words: str, told: str) -> None:
    with pytest.raises(DafuseError, match=told):
        start("run", [*SHARED, *words.split()])
    assert not Path("runs").exists()

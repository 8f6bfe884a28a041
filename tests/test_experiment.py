"""Experiments: runs are planned, made, replayed, reused and reported; one that fails stays one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import small_dataset
from dafuse.commands.experiment import main
from dafuse.commands.run import parse
from dafuse.engine.run import run
from dafuse.engine.training import Trainer
from dafuse.errors import DafuseError
from dafuse.experiments.declared import EXPERIMENTS, Experiment
from dafuse.experiments.plan import plan
from dafuse.methods.registry import METHODS, with_defaults
from dafuse.methods.simplecil import SimpleCIL

QUICK = ["--method.epochs", "1", "--method.batch_size=8", "--method.align_epochs=1"]
TINY = Experiment("a test", ({"name": "daf", "alpha": 1.0}, {"name": "daf", "alpha": 2.0}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small data, and a folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # so that the terminal breaks no line
    dataset = small_dataset([3] * 4)
    splits = {"train": dataset.train, "test": dataset.test}
    contents: dict[str, Any] = {f"{k}_images": part.items for k, part in splits.items()}
    contents |= {f"{k}_labels": part.labels for k, part in splits.items()}
    np.savez("small.npz", **contents)
    monkeypatch.setitem(EXPERIMENTS, "tiny", TINY)
    return ["--data", "small.npz", "--increment", "2", "--device", "cpu", *QUICK]


def test_every_declared_run_is_one_that_can_be_asked_for() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.shows
        labels = {tuple(options.items()) for options in experiment.runs}
        assert len(labels) == len(experiment.runs), f"{name} has a run twice"
        for options in experiment.runs:
            own = {key: value for key, value in options.items() if key != "name"}
            with_defaults(options["name"], own)
    free = {options["name"] for options in EXPERIMENTS["main-table"].runs}
    left_out = {name for name in METHODS if METHODS[name].keeps_images} | {"daf-retrieval"}
    assert free == METHODS.keys() - left_out


def test_a_dry_run_lists_and_computes_nothing(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tiny", "--dry-run", *world])
    told = capsys.readouterr().out
    assert "replays daf-arrays-seed1993" in told
    assert "2 runs, about 0 s to go and 2 runs of whose kind none is finished yet" in told
    assert not Path("runs").exists()


def test_trains_once_replays_reports_and_reuses(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda *a, **k: (fitted.append(1), fit(*a, **k))[1])
    main(["tiny", "--seeds", "1", "2", *world])
    assert len(fitted) == 2 * 2  # seeds x tasks, not x alphas
    told = capsys.readouterr().out
    assert "alpha=2.0" in told
    assert "missing" not in told
    assert "alpha=2.0" in Path("runs/tiny.html").read_text()
    main(["tiny", "--seeds", "1", "2", *world])
    assert len(fitted) == 4
    assert "is finished; nothing to compute" in capsys.readouterr().err
    main(["tiny", "--seeds", "1", "2", "3", "--dry-run", *world])
    assert "finished" in capsys.readouterr().out


def test_experiments_share_runs_and_records(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs under other names, and others that train the same way, by a command before."""
    main(["tiny", *world])
    first = set(Path("runs").glob("daf-*"))
    again = Experiment("a test", (*TINY.runs, {"name": "daf", "gamma": 0.1}))
    monkeypatch.setitem(EXPERIMENTS, "again", again)
    monkeypatch.setattr(Trainer, "fit", None)  # nothing is trained any more
    main(["again", *world])
    assert "missing" not in capsys.readouterr().out
    (new,) = set(Path("runs").glob("daf-*")) - first
    assert not (new / "record").exists()


def test_a_finished_run_without_a_record_is_reused_but_not_replayed(world: list[str]) -> None:
    one = parse([*world[:6], "--method.alpha", "1.0", *QUICK])
    run(one)
    common = {key: one.method[key] for key in ("epochs", "batch_size", "align_epochs")}
    planned = plan(TINY, parse(world[:6]), [1993], Path("runs"), common)
    assert [each.state() for each in planned] == ["finished", "to do"]
    assert planned[1].config.record


def test_a_failed_run_does_not_take_the_others_down(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = Experiment("a test", ({"name": "simplecil"}, *TINY.runs))
    monkeypatch.setitem(EXPERIMENTS, "mixed", mixed)

    def broken(method: SimpleCIL, task: object) -> None:
        raise RuntimeError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(SimpleCIL, "learn", broken)
        with pytest.raises(DafuseError, match=r"1 of 3 runs failed: simplecil.*no luck"):
            main(["mixed", *world])
    told = capsys.readouterr().out
    assert "missing: simplecil, seed 1993" in told
    assert "alpha=2.0" in told
    main(["mixed", *world])  # makes what is missing, and only that
    assert "missing" not in capsys.readouterr().out


def test_a_replay_whose_source_left_no_record_trains_itself(world: list[str]) -> None:
    planned = plan(TINY, parse(world[:6]), [1], Path("out"), {"epochs": 1})
    assert planned[0].config.record
    recorder = planned[0].folder
    assert planned[1].config.replay == str(recorder)
    assert planned[1].ready().replay is None
    assert planned[1].ready().record
    (recorder / "record").mkdir(parents=True)
    assert planned[1].ready() == planned[1].config


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "no experiment is called 'nothing'; there are main-table"),
        (["alpha", "--method", "simplecil"], "an experiment names its own methods"),
        (["alpha", "--method.projection", "5"], "has the option projection"),
        (["alpha", "--no_such", "5"], "no_such"),
    ],
)
def test_wrong_requests_are_told_in_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(DafuseError, match=told):
        main([*arguments, "--dry-run"])

"""Experiments: runs are planned, made, replayed, reused and reported; one that fails stays one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from dafuse.cli import start
from dafuse.commands.run import parse
from dafuse.engine.run import make_stream, resolved, run
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.experiments.declared import EXPERIMENTS, RULES, Experiment, MeasureOptions
from dafuse.experiments.guess import Guess
from dafuse.experiments.plan import estimates, measurements, plan
from dafuse.files import read_json
from dafuse.fusion.rule import FIXED_RULES
from dafuse.methods.daf import DAF
from dafuse.methods.registry import METHODS, with_defaults
from dafuse.methods.simplecil import SimpleCIL
from dafuse.report.drawing import Drawing
from dafuse.report.outputs import FIGURES, TABLES
from helpers.run_folders import rewrite
from helpers.small_datasets import save_arrays, small_dataset

QUICK = ["--method.epochs", "1", "--method.batch_size=8", "--method.align_epochs=1"]
TINY = Experiment("a test", ({"name": "daf", "alpha": 1.0}, {"name": "daf", "alpha": 2.0}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small data, and a folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # so that the terminal breaks no line
    dataset = small_dataset([3] * 4)
    save_arrays(dataset, Path("small.npz"))
    monkeypatch.setitem(EXPERIMENTS, "tiny", TINY)
    return ["--data", "small.npz", "--increment", "2", "--device", "cpu", *QUICK]


def test_all_rules_of_daf_are_compared() -> None:
    assert {*FIXED_RULES, "dynamic"} == set(RULES) == set(get_args(get_type_hints(DAF)["rule"]))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their figures, which take longer than the runs; other tests here draw them."""
    monkeypatch.setattr(Drawing, "svg", lambda _: '<svg role="img"></svg>')


def test_every_declared_run_is_one_that_can_be_asked_for() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.shows
        assert {*experiment.tables} <= TABLES.keys()
        assert experiment.cells or experiment.figure in FIGURES
        labels = {tuple(options.items()) for options in experiment.runs}
        assert len(labels) == len(experiment.runs), f"{name} has a run twice"
        for options in experiment.runs:
            own = {key: value for key, value in options.items() if key != "name"}
            with_defaults(options["name"], own)
    free = {options["name"] for options in EXPERIMENTS["main-table"].runs}
    left_out = {name for name in METHODS if METHODS[name].keeps_images} | {"daf-retrieval"}
    assert free == METHODS.keys() - left_out


def test_lift_joins_the_tables_of_all_methods() -> None:
    for name in ("main-table", "efficiency", "seeds", "closed-form", "streams", "memory"):
        assert "lift" in {options["name"] for options in EXPERIMENTS[name].runs}, name


def test_runs_are_made_in_each_setting(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same methods on every stream without tasks: a row and a line for each."""
    quick = ["--method.features=last", "--method.width=50"]
    start("experiment", ["streams", *quick, "--points", "3", "--visits", "2", *world[:6]])
    told = capsys.readouterr().out
    assert "missing" not in told
    text = Path("runs/streams-arrays.md").read_text()
    for stream in ("online", "blurry", "repeated"):
        for method in ("lift", "simplecil"):
            assert f"| {method} ({stream}) |" in text
    assert "| none |" in text  # nothing is trained: there is no speed of training
    assert Path("runs/streams-arrays.png").read_bytes().startswith(b"\x89PNG")
    assert "lift (blurry)" in Path("runs/streams-arrays.html").read_text()


def test_the_settings_are_the_experiments_choice(world: list[str]) -> None:
    base = parse([*world[:6], "--points", "9", "--visits", "4"])
    planned = plan(EXPERIMENTS["streams"], base, [1], Path("runs"), {})
    assert {each.config.points for each in planned} == {9}
    assert [each.config.visits for each in planned[::5]] == [3, 3, 4]  # of the repeated one alone
    assert planned[0].label == "lift-stream-online"
    assert len({each.folder for each in planned}) == 15
    with pytest.raises(DafuseError, match="chooses stream itself: leave --stream out"):
        plan(EXPERIMENTS["streams"], replace(base, stream="online"), [1], Path("runs"), {})


@pytest.mark.usefixtures("undrawn")
def test_memory_sets_accuracy_against_bytes(
    world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tuple(
        options
        for options in EXPERIMENTS["memory"].runs
        if options.get("features") == ("all" if "keep" in options else "last")
        and options.get("rank", 2) in (2, 16)
        and options.get("width", 0) in (0, 2500)
    )
    monkeypatch.setitem(EXPERIMENTS, "memory", replace(EXPERIMENTS["memory"], runs=runs))
    assert len(runs) == 4
    start("experiment", ["memory", *world[:6]])
    head, _, *rows = Path("runs/memory-arrays.md").read_text().splitlines()[2:8]
    assert head == "| Method | Runs | Average | Final | Kept | Kept a class |"
    assert [row.split(" |")[0] for row in rows] == [  # those that keep least first
        "| lift (features=last)",
        "| lift (features=all, keep=classwise, rank=2)",
        "| lift (features=last, width=2500)",
        "| lift (features=all, keep=classwise, rank=16)",
    ]
    assert Path("runs/memory-arrays.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("undrawn")
def test_closed_form_crosses_features_and_heads(
    world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tuple(
        options
        for options in EXPERIMENTS["closed-form"].runs
        if options["name"] == "simplecil"
        or (options.get("features") in ("last", "top") and not options.get("width"))
    )
    monkeypatch.setitem(EXPERIMENTS, "closed-form", replace(EXPERIMENTS["closed-form"], runs=runs))
    start("experiment", ["closed-form", *world[:6]])
    text = Path("runs/closed-form-arrays.md").read_text()
    assert "| lift, Average / Final: features, and head across | ridge | lda |" in text
    assert Path("runs/closed-form-arrays.png").read_bytes().startswith(b"\x89PNG")


def test_a_dry_run_lists_and_computes_nothing(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start("experiment", ["tiny", "--dry-run", *world])
    told = capsys.readouterr().out
    assert "replays daf-arrays-seed1993" in told
    assert "2 runs: about " in told
    assert "; a guess from one timed pass, as none of the kind is finished in runs yet" in told
    assert "makes runs/tiny-arrays.html, .md and .png: table and the figure accuracy" in told
    assert not Path("runs").exists()


def test_trains_once_replays_reports_and_reuses(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda *a, **k: (fitted.append(1), fit(*a, **k))[1])
    start("experiment", ["tiny", "--seeds", "1", "2", *world])
    assert len(fitted) == 2 * 2  # seeds x tasks, not x alphas
    told = capsys.readouterr().out
    assert "alpha=2.0" in told
    assert "missing" not in told
    assert "alpha=2.0" in Path("runs/tiny-arrays.html").read_text()
    assert "alpha=2.0" in Path("runs/tiny-arrays.md").read_text()
    assert Path("runs/tiny-arrays.png").read_bytes().startswith(b"\x89PNG")
    start("experiment", ["tiny", "--seeds", "1,2", *world])
    assert len(fitted) == 4
    assert "is finished; nothing to compute" in capsys.readouterr().err
    start("experiment", ["tiny", "--seeds", "1", "2", "3", "--dry-run", *world])
    assert "finished" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_experiments_share_runs_and_records(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs under other names, and others that train the same way, by a command before."""
    start("experiment", ["tiny", *world])
    first = set(Path("runs").glob("daf-*"))
    again = Experiment("a test", (*TINY.runs, {"name": "daf", "gamma": 0.1}))
    monkeypatch.setitem(EXPERIMENTS, "again", again)
    monkeypatch.setattr(Trainer, "fit", None)  # nothing is trained any more
    start("experiment", ["again", *world])
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


@pytest.mark.usefixtures("undrawn")
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
            start("experiment", ["mixed", *world])
    told = capsys.readouterr().out
    assert "missing: simplecil, seed 1993" in told
    assert "alpha=2.0" in told
    start("experiment", ["mixed", *world])  # makes what is missing, and only that
    assert "missing" not in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_run_is_told_of_and_the_others_are_reported(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan, the run and the report name it, and so does a report that makes nothing."""
    start("experiment", ["tiny", *world])
    (replayed,) = (f for f in Path("runs").glob("daf-*") if not (f / "record").is_dir())
    (replayed / "results.json").write_text('{"broken')
    capsys.readouterr()
    start("experiment", ["tiny", "--dry-run", *world])
    assert "damaged" in capsys.readouterr().out
    with pytest.raises(DafuseError, match=rf"1 of 2 runs failed.*delete {replayed}, or"):
        start("experiment", ["tiny", *world])
    for arguments in (["tiny", "--report-only"], ["tiny", "--report-only", "--seeds", "1993"]):
        Path("runs/tiny-arrays.html").unlink()
        start("experiment", [*arguments, *world])
        missing = "daf-alpha-2.0, seed 1993 (damaged)"
        assert f"missing: {missing}" in capsys.readouterr().out
        page = Path("runs/tiny-arrays.html").read_text()
        assert missing in page
        assert f"Missing: {missing}\n" in Path("runs/tiny-arrays.md").read_text()
        assert "<h1>tiny: " in page
    shutil.rmtree(replayed)
    start("experiment", ["tiny", *world])
    assert "missing" not in capsys.readouterr().out.lower()
    assert "Missing" not in Path("runs/tiny-arrays.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_time_to_go_is_known_from_finished_runs_and_from_a_runs_own_tasks(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan(TINY, parse(world), [1, 2], Path("runs"), {"epochs": 1})
    assert list(estimates(planned, Path("runs"))) == [None] * 4
    start("experiment", ["tiny", "--seeds", "1", *world])
    common = {"epochs": 1, "batch_size": 8, "align_epochs": 1}
    planned = plan(TINY, parse(world[:6]), [1, 2], Path("runs"), common)
    first, second, third, fourth = estimates(planned, Path("runs"))
    assert first == second == 0
    assert third is not None
    assert fourth is not None
    assert third > 0
    folder = planned[0].folder
    begun = read_json(folder / "results.json")
    half = {key: begun[key][:1] for key in ("correct", "total", "tasks")}
    rewrite(folder, "results.json", lambda content: content.update({**half, "confusion": []}))
    left = next(estimates(planned, Path("runs")))
    assert left == pytest.approx(sum(begun["tasks"][0]["seconds"].values()))


def test_a_guess_counts_the_passes_of_training_statistics_and_evaluation(
    world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafuse.experiments.guess.seconds", lambda work, device: 16.0)  # a batch
    base = resolved(parse(world[:6]))
    guess = Guess(base)

    def of(**method: Any) -> float:
        return guess.of_run(resolved(replace(base, method=method)))

    train = sum(len(task.train) for task in make_stream(base, small_dataset([3] * 4)))
    tests = [len(task.test) for task in make_stream(base, small_dataset([3] * 4))]
    first, both = tests[0], sum(tests)
    assert of(name="simplecil") == train + first + both
    assert of(name="daf", epochs=5) == 2 * (5 + 1) * train + train + first + both  # with Fisher
    assert of(name="foster", first_epochs=2, epochs=3, compress_epochs=4) == (
        2 * (2 + 3 + 4) * train / 2 + train + first + 2 * both
    )
    assert of(name="ranpac", epochs=5) == 2 * 5 * train / 2 + train + first + both
    assert of(name="ease", epochs=5) == 2 * 5 * train + train + first + 2 * both
    replayed = resolved(replace(base, method={"name": "daf"}, replay="runs/some"))
    assert guess.of_run(replayed) == train + first + both
    measured = MeasureOptions(tasks=2, images=3, probes=4, coordinates=5)
    assert guess.of_measurement(measured) == 2 * 3 * 4 * (4 + 5) * 6


def test_a_folder_that_cannot_be_made_is_told_in_one_line(world: list[str]) -> None:
    Path("file").write_text("in the way")
    with pytest.raises(DafuseError, match="cannot make the folder file/runs: Not a directory"):
        start("experiment", ["tiny", "--out", "file/runs", *world])


def test_where_nothing_can_be_guessed_a_dry_run_says_why(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start("experiment", ["tiny", "--dry-run", "--data", "cifar100", "--data.root", "nowhere"])
    told = capsys.readouterr().out
    assert "2 runs: for 2 the time is unknown: CIFAR-100 is not in nowhere" in told


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
        (["alpha", "--report-only"], "either --dry-run or --report-only, not both"),
        (["alpha", "--method", "simplecil"], "an experiment names its own methods"),
        (["alpha", "--method.projection", "5"], "has the option projection"),
        (["alpha", "--no_such", "5"], "no_such"),
        (["alpha", "--method.alpha", "7"], "this experiment chooses alpha itself"),
        (["alpha", "--method.epochs", "abc"], "epochs"),
        (["alpha", "--method.epochs", "-3"], "method.epochs must be at least 1, not -3"),
        (["alpha", "--method.epochs"], "epochs"),
        (["alpha", "--seed", "1994"], "--seed is not for an experiment: use --seeds"),
        (["alpha", "--record"], "--record is not for an experiment"),
        (["alpha", "--replay=runs/x"], "--replay is not for an experiment"),
        (["alpha", "--seeds", "-1"], "a seed is a number from 0 to 4294967295, not -1"),
        (["alpha", "--increment", "0"], "a task needs at least one class, not 0"),
        (["alpha", "--backbone", "nowhere"], "no backbone is called nowhere"),
        (["alpha", "--out", __file__], "is not a folder"),
    ],
)
def test_wrong_requests_are_told_in_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(DafuseError, match=told):
        start("experiment", [*arguments, "--dry-run"])


def test_the_run_with_the_most_defaults_records_for_the_others(world: list[str]) -> None:
    """Whatever order they are declared in: its speed is asked for, and its Fisher is used again."""
    declared = Experiment(
        "a test", tuple({"name": "daf", "rule": rule} for rule in ("last", "dynamic", "mean"))
    )
    planned = plan(declared, parse(world[:6]), [1], Path("runs"), {})
    last, dynamic, mean = planned
    assert dynamic.config.record
    assert dynamic.config.replay is None
    assert last.config.replay == mean.config.replay == str(dynamic.folder)


def test_a_run_without_a_record_is_measured_at_another_ones(world: list[str]) -> None:
    common = {"epochs": 1, "batch_size": 8, "align_epochs": 1}
    (one, _) = plan(TINY, parse(world[:6]), [1], Path("runs"), common)
    run(replace(one.config, record=False))
    measuring = replace(TINY, measures=True)
    planned = plan(measuring, parse(world[:6]), [1], Path("runs"), common)
    (measurement,) = measurements(measuring, planned, MeasureOptions(1, 2, 1, 1))
    assert planned[1].config.record
    assert measurement.config.replay == str(planned[1].folder)
    assert measurement.folder == planned[0].folder


@pytest.mark.usefixtures("undrawn")
def test_times_of_another_device_or_precision_are_not_taken(
    world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start("experiment", ["tiny", "--seeds", "1", *world])
    common = {"epochs": 1, "batch_size": 8, "align_epochs": 1}

    def known(*more: str) -> bool:
        planned = plan(TINY, parse([*world[:6], *more]), [2], Path("runs"), common)
        return None not in estimates(planned, Path("runs"))

    assert known()
    assert not known("--precision", "bf16")
    monkeypatch.setattr("dafuse.experiments.plan.describe", lambda device: "cuda (a GPU)")
    assert not known()

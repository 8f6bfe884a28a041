"""Runs read back from their folders, whole, cut short or damaged, and what they are called."""

import json
import os

import numpy as np
import pytest

from dafuse.cli import start
from dafuse.commands.terminal import show_results
from dafuse.engine.config import RunConfig
from dafuse.engine.results import Declared, FinishedTask
from dafuse.engine.run import run
from dafuse.errors import DafuseError
from dafuse.methods.registry import with_defaults
from dafuse.report import tables
from dafuse.report.page import page
from dafuse.report.runs import (
    NoResultsYet,
    Origin,
    find_runs,
    load_run,
)
from dafuse.report.runs_table import ledger
from dafuse.report.settings import USUAL, Recipe, group_runs
from helpers.run_folders import make_run, rewrite
from helpers.small_datasets import small_dataset


def test_finds_runs_at_any_depth_once_and_in_order(tmp_path):
    make_run(tmp_path / "a" / "x" / "one")
    make_run(tmp_path / "b", method="simplecil")
    make_run(tmp_path / "b" / "inside", method="ignored, since runs hold no runs")
    (tmp_path / "c").symlink_to(tmp_path)
    runs = find_runs([tmp_path, tmp_path / "b"])
    assert [run.config.method for run in runs] == ["daf", "simplecil"]


def test_bad_paths_are_named(tmp_path):
    with pytest.raises(DafuseError, match=r"gone is not a folder"):
        find_runs([tmp_path / "gone"])
    with pytest.raises(DafuseError, match=r"is not a run folder"):
        find_runs([tmp_path])
    with pytest.raises(DafuseError, match=r"is not a run folder"):
        load_run(tmp_path)


def test_a_run_that_lost_files_is_named_with_what_to_do(tmp_path):
    lost = make_run(tmp_path / "runs" / "lost")
    make_run(tmp_path / "runs" / "whole")
    (lost / "checkpoints").mkdir(exist_ok=True)
    (lost / "checkpoints" / "task-0004.json").write_text("{}")
    (lost / "results.json").unlink()
    with pytest.raises(
        NoResultsYet, match=r"lost has a checkpoint, but no results.json: start its"
    ):
        load_run(lost)
    (lost / "config.json").unlink()
    said = []
    assert len(find_runs([tmp_path / "runs"], said.append)) == 1
    assert said == [f"skipped: {lost} is not a run folder: it has no config.json"]


def test_what_to_do_about_a_damaged_file_depends_on_which_it_is(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "config.json").write_text("{")
    with pytest.raises(DafuseError, match=f"delete {run} to run it again$"):
        load_run(run)


def test_runs_without_results(tmp_path):
    make_run(tmp_path / "runs" / "good")
    (make_run(tmp_path / "runs" / "new") / "results.json").unlink()
    make_run(tmp_path / "runs" / "newer", done=0)
    said = []
    assert len(find_runs([tmp_path / "runs"], said.append)) == 1
    assert len(said) == 2
    assert all("no task is finished" in line for line in said)
    with pytest.raises(NoResultsYet, match="no results yet"):
        find_runs([tmp_path / "runs" / "new"])
    (tmp_path / "runs" / "good" / "results.json").unlink()
    with pytest.raises(NoResultsYet, match="nothing to report yet"):
        find_runs([tmp_path / "runs"])


@pytest.mark.parametrize("name", ["config.json", "provenance.json", "results.json"])
def test_damaged_newer_and_foreign_files_are_named(tmp_path, name):
    folder = make_run(tmp_path / "run")
    rewrite(folder, name, lambda content: content.update(format=2))
    with pytest.raises(DafuseError, match=rf"{name} has format 2.*upgrade"):
        load_run(folder)
    (folder / name).write_text('{"format": 1, "cut": [1, 2')
    with pytest.raises(DafuseError, match=rf"{name} is not whole JSON"):
        load_run(folder)
    (folder / name).write_text("[]")
    with pytest.raises(DafuseError, match=rf"{name} was not written by a dafuse run"):
        load_run(folder)


def test_results_that_do_not_hold_together_are_named(tmp_path):
    folder = make_run(tmp_path / "run")
    rewrite(folder, "results.json", lambda content: content["correct"][1].pop())
    with pytest.raises(DafuseError, match=r"results\.json does not hold together"):
        load_run(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda others: others["cnn"].pop(),
        lambda others: others["cnn"][2].pop(),
        lambda others: others.update(cnn=None),
        lambda others: others.update(linear=[]),
    ],
)
def test_other_predictions_that_do_not_hold_together_are_named(tmp_path, spoil):
    folder = make_run(tmp_path / "run", others=["cnn"])
    rewrite(folder, "results.json", lambda content: spoil(content["others"]))
    with pytest.raises(DafuseError, match=r"results\.json does not hold together"):
        load_run(folder)
    rewrite(folder, "results.json", lambda content: content.update(others=["cnn"]))
    with pytest.raises(DafuseError, match=r"results\.json does not hold together"):
        load_run(folder)


def put(*path, value):
    """Return a change of one entry of results: the last of the path under those before it."""

    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def swap_answers(content):
    """Take a right answer of the first class for a wrong one."""
    row = content["confusion"][0]
    row[0], row[1] = row[0] - 1, row[1] + 1


IMPOSSIBLE = {
    "more right than shown": (put("correct", 3, 0, value=9_999), "9,999 right of 100"),
    "less than none right": (put("correct", 0, 0, value=-1), r"correct\[0\]\[0\] is not a whole"),
    "no number": (put("correct", 0, 0, value=float("nan")), "is not a whole number"),
    "a half": (put("correct", 0, 0, value=1.5), "is not a whole number"),
    "a truth": (put("total", 0, 0, value=True), "is not a whole number"),
    "a word": (put("total", value="many"), "total is not a list"),
    "more shown later": (put("total", 3, 0, value=200), "other test images"),
    "fewer tasks": (put("tasks_total", value=2), "2 tasks of 20 classes"),
    "tasks without end": (put("tasks_total", value=2**70), "tasks_total is not a whole"),
    "no sizes": (put("task_sizes", value=[]), "4 tasks of 20 classes, but the sizes"),
    "large tasks": (put("task_sizes", 0, value=500), "4 tasks of 20 classes, but the sizes"),
    "fewer classes": (put("classes", value=["a"]), "4 tasks of 1 classes"),
    "smaller tasks": (put("task_sizes", 0, value=4), "4 tasks of 20 classes, but the sizes"),
    "a class twice": (put("classes", 7, value="class 3"), "2 classes are called 'class 3'"),
    "classes of numbers": (put("classes", value=[1] * 20), "is not a text"),
    "a task too many": (lambda c: c["tasks"].append(c["tasks"][0]), "4 rows of counts, but 5"),
    "tasks of another kind": (put("tasks", 1, value=[]), r"tasks\[1\] is not a mapping"),
    "a task before the start": (put("tasks", 1, "seconds", "train", value=-1), "from 0 to"),
    "endless seconds": (put("tasks", 1, "seconds", "train", value=float("inf")), "seconds.train"),
    "seconds beyond all time": (put("tasks", 1, "seconds", "train", value=1e308), "thousand years"),
    "seconds below any clock": (put("tasks", 1, "seconds", "evaluate", value=1e-300), "seconds"),
    "bytes without end": (put("tasks", 3, "kept_bytes", "modules", value=1e308), "to 2.63"),
    "no seconds": (lambda c: c["tasks"][0].pop("seconds"), "seconds is missing"),
    "half an image": (put("tasks", 0, "images", "train", value=0.5), "images.train"),
    "bytes of another kind": (put("tasks", 3, "kept_bytes", value=[1]), "kept_bytes is not a"),
    "a loss of words": (put("tasks", 0, "loss", value=["a"]), r"loss\[0\] is not a number"),
    "a deviation of words": (put("tasks", 0, "compiled_deviation", value="xx"), "is not a number"),
    "a β of words": (put("tasks", 1, "diagnosis", "beta", value="x"), "beta is not a list"),
    "a β of half its quantiles": (
        lambda c: c["tasks"][1]["diagnosis"]["beta"][0]["quantiles"].pop("50"),
        "beta.50 is missing",
    ),
    "then more right": (put("tasks", 3, "correct_then", value=[1, 1, 1, 999]), "999 right of 100"),
    "then of other tasks": (put("tasks", 3, "correct_then", value=[1]), "counts 1 tasks, not 4"),
    "confusion of other classes": (put("confusion", value=[[1, 2]]), "is not a square"),
    "confusion of fewer classes": (put("confusion", value=[[20]]), "not a square of the 20"),
    "confusion of more images": (
        put("confusion", 0, 1, value=99),
        "images of task 1, but 100",
    ),
    "confusion of more right": (swap_answers, "right answers of task 1"),
    "confusion of words": (put("confusion", 0, 0, value="a"), "confusion"),
    "a method of words": (put("method", value="daf"), "method is not a mapping"),
    "passes of words": (put("method", "passes_per_prediction", value="1"), "passes_per"),
    "skipped numbers": (put("skipped", value=[1]), "is not a text"),
    "others more right": (put("others", value={"x": [[999], [0] * 2, [0] * 3, [0] * 4]}), "by x"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_impossible_results_are_refused_and_the_others_are_reported(tmp_path, kind):
    make_run(tmp_path / "runs" / "good")
    folder = make_run(tmp_path / "runs" / "bad", seed=1)
    change, said = IMPOSSIBLE[kind]
    rewrite(folder, "results.json", change)
    with pytest.raises(DafuseError, match=rf"results\.json does not hold together: .*{said}"):
        load_run(folder)
    told = []
    (good,) = find_runs([tmp_path / "runs"], told.append)
    assert good.folder.name == "good"
    assert len(told) == 1
    assert told[0].startswith(f"skipped: {folder / 'results.json'} does not hold together")
    with pytest.raises(DafuseError, match=said):
        find_runs([folder])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", put("config", value=5)),
        ("config.json", put("config", "method", value="daf")),
        ("config.json", put("config", "method", "name", value=5)),
        ("config.json", put("config", "data", value=None)),
        ("config.json", put("config", "seed", value=[1])),
        ("config.json", put("hash", value=5)),
        ("provenance.json", put("weights", value=["x"])),
        ("provenance.json", put("versions", value="1")),
        ("provenance.json", put("started", value=5)),
        ("provenance.json", put("deep", value=json.loads("[" * 90 + "]" * 90))),
    ],
)
def test_descriptions_of_another_shape_are_named(tmp_path, name, change):
    folder = make_run(tmp_path / "run")
    rewrite(folder, name, change)
    with pytest.raises(DafuseError, match=rf"{name} was not written by a dafuse run: .*; delete"):
        load_run(folder)


@pytest.mark.parametrize("name", ["config.json", "provenance.json", "results.json"])
def test_what_is_no_file_of_its_own_is_named(tmp_path, name):
    folder = make_run(tmp_path / "run")
    (folder / name).rename(tmp_path / "elsewhere.json")
    (folder / name).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DafuseError, match=rf"{name} is a link"):
        load_run(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(DafuseError, match=rf"cannot read .*{name}"):
        find_runs([tmp_path])
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    with pytest.raises(DafuseError, match=rf"cannot read .*{name}"):
        find_runs([tmp_path])


def test_what_a_terminal_would_obey_is_spelt_out(tmp_path, capsys):
    make_run(tmp_path / "runs" / "good", method="red\x1b[31m", done=1)
    bad = make_run(tmp_path / "runs" / "bad\x1b[2J")
    rewrite(bad, "results.json", put("correct", 0, 0, value=9_999))
    runs = find_runs([tmp_path / "runs"])
    show_results(runs, tmp_path / "page\x1b.html")
    start("report", [str(tmp_path / "runs"), "--out", str(tmp_path / "report")])
    told = capsys.readouterr().out + (tmp_path / "report" / "table.md").read_text()
    assert "\x1b" not in told
    assert "red\\x1b[31m" in told
    assert "bad\\x1b[2J" in told


def test_partial_run_is_marked(tmp_path):
    make_run(tmp_path / "run", tasks=20, done=3)
    runs = find_runs([tmp_path])
    assert runs[0].mark == "3 of 20 tasks"
    assert runs[0].seen_classes == [5, 10, 15]
    assert "daf, 3 of 20 tasks" in tables.markdown(tables.make_table(runs))
    assert "3 of 20 tasks" in page(runs)


def test_what_a_run_does_not_tell_is_empty(tmp_path):
    folder = make_run(tmp_path / "run", tasks=2)

    def strip(content):
        del content["method"], content["confusion"]
        content["tasks"] = [{"seconds": {}}, {"seconds": {"train": 2.0}, "diagnosis": None}]

    rewrite(folder, "results.json", strip)
    (folder / "provenance.json").unlink()
    found = load_run(folder)
    assert (found.declared, found.provenance) == (Declared(), Origin())
    assert found.tasks == [FinishedTask(), FinishedTask(seconds={"train": 2.0})]
    assert (found.confusion, found.seconds) == ([], 2.0)
    assert found.diagnosed(lambda measured: measured.beta) == []
    assert "seed 1993" in page([found])


def test_a_diagnosis_is_parsed_once_for_all_figures(tmp_path):
    found = load_run(make_run(tmp_path / "run", tasks=2, diagnosed=True))
    first, again = (found.diagnosed(lambda measured: measured.beta) for _ in range(2))
    assert first[0][1] is again[0][1]


# ---- names and groups


def names(folder):
    return [group.name for group in group_runs(find_runs([folder]))]


def test_name_has_only_the_options_that_differ(tmp_path):
    make_run(tmp_path / "1")
    make_run(tmp_path / "2", options={"rule": "last"})
    make_run(tmp_path / "3", method="simplecil")
    assert names(tmp_path) == ["daf (rule=dynamic)", "daf (rule=last)", "simplecil"]


def test_what_most_runs_share_goes_without_saying(tmp_path):
    make_run(tmp_path / "1", increment=10)
    make_run(tmp_path / "2", method="aper", increment=20)
    assert names(tmp_path) == ["daf (increment=10)", "aper (increment=20)"]
    make_run(tmp_path / "3", method="tuna", increment=10)
    assert names(tmp_path) == ["daf", "aper (increment=20)", "tuna"]


def test_data_and_backbone_are_named_when_they_differ(tmp_path):
    make_run(tmp_path / "1")
    assert names(tmp_path) == ["daf"]
    make_run(tmp_path / "2", data={"name": "imagenet-r"})
    assert names(tmp_path) == ["daf (cifar100)", "daf (imagenet-r)"]
    make_run(tmp_path / "3", backbone="vit_base", increment=10)
    assert names(tmp_path)[2] == "daf (cifar100, vit_base, increment=10)"


def test_seeds_group_unless_their_progress_differs(tmp_path):
    for seed in (1993, 1994):
        make_run(tmp_path / str(seed), seed=seed)
    make_run(tmp_path / "late", seed=1995, done=2)
    groups = group_runs(find_runs([tmp_path]))
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["daf", "daf, 2 of 4 tasks"]
    assert groups[0].title(groups[0].runs[1]) == "daf, seed 1994"


DEFAULTS = {"defaults": {"alpha": 1.25, "rule": "dynamic"}}


def test_what_is_at_its_default_goes_without_saying(tmp_path):
    make_run(tmp_path / "1", declares=DEFAULTS)
    make_run(tmp_path / "2", declares=DEFAULTS, options={"rule": "last"})
    make_run(tmp_path / "3", declares=DEFAULTS, options={"rule": "last", "alpha": 2})
    assert names(tmp_path) == ["daf", "daf (rule=last)", "daf (alpha=2, rule=last)"]


def test_defaults_of_two_versions_are_told_apart(tmp_path):
    make_run(tmp_path / "1", declares=DEFAULTS)
    make_run(
        tmp_path / "2",
        declares={"defaults": {"alpha": 2, "rule": "dynamic"}},
        options={"alpha": 2},
    )
    make_run(tmp_path / "3", declares=DEFAULTS, options={"rule": "last"})
    assert names(tmp_path) == [
        "daf (alpha=1.25, rule=dynamic)",
        "daf (alpha=2, rule=dynamic)",
        "daf (rule=last)",
    ]


def test_values_too_long_for_a_name_are_numbered(tmp_path):
    for number, last in enumerate((98, 99)):
        for seed in (1, 2):
            make_run(tmp_path / f"{number}-{seed}", seed=seed, order=[*range(50), last])
    groups = group_runs(find_runs([tmp_path]))
    assert [len(group.runs) for group in groups] == [2, 2]
    assert groups[0].name.endswith("…) #1")
    assert groups[1].name == groups[0].name.replace("#1", "#2")


def test_a_run_of_the_engine_tells_its_defaults(tmp_path):
    dataset = small_dataset([3] * 4)
    np.savez(
        tmp_path / "data.npz",
        train_images=dataset.train.items,
        train_labels=dataset.train.labels,
        test_images=dataset.test.items,
        test_labels=dataset.test.labels,
    )
    quick = {"epochs": 1, "align_epochs": 1, "align_samples": 2}
    folder = run(
        RunConfig(
            method={"name": "daf", "rule": "last", **quick},
            data={"name": str(tmp_path / "data.npz")},
            increment=4,
            device="cpu",
            out=str(tmp_path / "run"),
        )
    )
    defaults = load_run(folder).declared.defaults
    assert defaults == with_defaults("daf", {})
    assert defaults["rule"] == "dynamic"


# ---- several ways to predict


def test_each_way_to_predict_is_a_group_below_the_first(tmp_path):
    for seed in (1, 2):
        make_run(
            tmp_path / f"icarl{seed}",
            method="icarl",
            seed=seed,
            declares={"prediction": "nme"},
            others=["cnn", "linear"],
        )
    make_run(tmp_path / "late", method="icarl", done=2, declares={"prediction": "nme"})
    make_run(tmp_path / "simplecil", method="simplecil", declares={"prediction": ""})
    groups = group_runs(find_runs([tmp_path]))
    assert [group.label for group in groups] == [
        "icarl [nme]",
        "icarl [cnn]",
        "icarl [linear]",
        "icarl [nme], 2 of 4 tasks",
        "simplecil",
    ]
    assert [len(group.runs) for group in groups] == [2, 2, 2, 1, 1]
    assert [group.runs[0].primary for group in groups] == [True, False, False, True, True]
    first, second, third = (np.array(group.runs[1].curve) for group in groups[:3])
    assert first - second == pytest.approx(1)  # one image of a hundred, in each task
    assert first - third == pytest.approx(2)


def test_other_predictions_without_the_first_one_s_name(tmp_path):
    make_run(tmp_path / "run", method="icarl", others=["cnn"])
    assert names(tmp_path) == ["icarl", "icarl [cnn]"]


# ---- streams without tasks


def test_a_stream_without_tasks_is_always_named(tmp_path):
    online = {"stream": "online", "points": None, "observed_batch": 10}
    blurry = {**online, "stream": "blurry", "disjoint_share": 0.5, "blurry_share": 0.1}
    make_run(tmp_path / "1", method="simplecil", done=2, **online)
    assert names(tmp_path) == ["simplecil (online)"]
    assert find_runs([tmp_path])[0].mark == "2 of 4 points"
    make_run(tmp_path / "2", method="simplecil")
    make_run(tmp_path / "3", method="simplecil", **blurry)
    make_run(tmp_path / "4", method="simplecil", **{**blurry, "blurry_share": 0.3})
    assert names(tmp_path) == [
        "simplecil (online)",
        "simplecil",
        "simplecil (blurry, blurry_share=0.1)",
        "simplecil (blurry, blurry_share=0.3)",
    ]


def test_of_a_stream_without_tasks_the_average_is_an_area(tmp_path):
    run = find_runs([make_run(tmp_path / "run", method="simplecil", stream="repeated", visits=2)])
    text = page(run)
    assert "Area under the curve (%)" in text
    assert "repeated stream (visits=2)" in text
    assert "5 per task" not in text
    assert "tested on classes new at point" in text
    assert "point of evaluation" in text
    (row,) = ledger(run)
    assert "repeated stream" in row["Data"]
    assert "--stream=repeated" in row["Command"]


def test_a_recipe_is_not_of_another_stream(tmp_path):
    recipe = Recipe("r", {"method": {"name": "simplecil"}, "data": {"name": "cifar100"}}, {})
    asked = {"backbone": USUAL.backbone, "increment": 10, "declares": {"defaults": {}}}
    tasks = make_run(tmp_path / "tasks", method="simplecil", **asked)
    online = make_run(tmp_path / "online", method="simplecil", stream="online", **asked)
    assert recipe.is_of(load_run(tasks))
    assert not recipe.is_of(load_run(online))

"""The record of a run: what is written is read as the same, and what is new is added to it."""

import json

import pytest

from dafuse.engine.results import Declared, FinishedTask, Results


def after_two_tasks() -> Results:
    """Return results of a method with another way to predict; the first task has no test images."""
    results = Results(["a", "b", "c"], [2, 1], ["x.png: no image"])
    results.add([0], [0], {})
    results.add([0, 3], [0, 4], {"student": [0, 2]})
    results.confusion = [[0, 0, 0], [0, 0, 0], [1, 0, 3]]
    results.declared = Declared(2, True, "nothing", "teacher", {"epochs": 20})
    diagnosis = {"of its own": [1, None]}
    results.tasks = [
        FinishedTask({"train": 2.5}),
        FinishedTask({}, loss=[0.5], diagnosis=diagnosis),
    ]
    return results


def test_what_is_written_is_read_as_the_same() -> None:
    results = after_two_tasks()
    content = json.loads(json.dumps(results.as_json()))
    assert Results.parsed(content) == results
    assert json.dumps(Results.parsed(content).as_json()) == json.dumps(content)
    assert (content["status"], content["method"]["prediction"]) == ("finished", "teacher")
    assert [task["task"] for task in content["tasks"]] == [0, 1]


def test_a_way_that_comes_late_has_counts_of_every_task() -> None:
    assert after_two_tasks().others["student"].correct == [[0], [0, 2]]


def test_keys_of_another_version_are_left_out() -> None:
    results = after_two_tasks()
    content = results.as_json()
    content["tasks"][0] |= {"later": 1, "loss": None}
    assert Results.parsed(content) == results


def test_parts_that_do_not_fit_are_refused() -> None:
    content = after_two_tasks().as_json()
    content["tasks"].pop()
    with pytest.raises(ValueError, match="2 rows of counts, but 1 tasks"):
        Results.parsed(content)

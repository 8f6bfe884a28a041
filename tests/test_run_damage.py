"""Run folders in which something was changed: a run does not go on from them, and says why."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import save_arrays, small_dataset
from dafuse.engine.config import RunConfig
from dafuse.engine.run import Bench, prepare, run
from dafuse.errors import DafuseError
from dafuse.files import read_json
from dafuse.methods.simplecil import SimpleCIL
from dafuse.report.runs import load_run
from dafuse.sealed import SEAL, read_sealed, write_sealed

TASKS = 3
READ_AGAIN = ("config.json", "provenance.json", "results.json", "checkpoints/task-0002.json")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    file = tmp_path_factory.mktemp("data") / "small.npz"
    save_arrays(small_dataset([4] * 6), file)
    data = {"name": "arrays", "file": str(file)}
    return RunConfig(method={"name": "simplecil"}, data=data, increment=2, device="cpu")


@pytest.fixture(scope="module")
def bench(config: RunConfig) -> Bench:
    return prepare(config)


@pytest.fixture(scope="module")
def stopped(config: RunConfig, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped after two of its tasks."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    learn = SimpleCIL.learn

    def stop(method: SimpleCIL, task: Any) -> dict[str, Any]:
        if task.number == TASKS:
            raise KeyboardInterrupt
        return learn(method, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleCIL, "learn", stop)
        with pytest.raises(KeyboardInterrupt):
            run(replace(config, out=str(folder)), bench=bench)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture
def go_on(config: RunConfig, bench: Bench, folder: Path) -> Callable[[], Path]:
    return lambda: run(replace(config, out=str(folder)), bench=bench)


def test_it_goes_on_to_the_end(go_on: Callable[[], Path]) -> None:
    assert len(load_run(go_on()).matrix) == TASKS


def test_every_file_that_is_read_again_is_sealed(folder: Path) -> None:
    for name in READ_AGAIN:
        assert len(read_json(folder / name)[SEAL]) == 64, name


def test_a_changed_count_is_not_gone_on_from(folder: Path, go_on: Callable[[], Path]) -> None:
    file = folder / "checkpoints" / "task-0002.json"
    record = read_json(file)
    record["results"]["correct"][1][0] -= 1
    file.write_text(json.dumps(record))
    with pytest.raises(
        DafuseError,
        match=r"task-0002\.json was changed or damaged.*SHA-256.*delete .*checkpoints to start",
    ):
        go_on()


def test_a_changed_count_is_not_reported(folder: Path, go_on: Callable[[], Path]) -> None:
    file = folder / "results.json"
    results = read_json(file)
    results["correct"][1][0] -= 1
    file.write_text(json.dumps(results))
    with pytest.raises(DafuseError, match=r"results\.json was changed.*start its run again"):
        load_run(folder)
    assert len(load_run(go_on()).matrix) == TASKS  # as said


@pytest.mark.parametrize("name", ["config.json", "provenance.json"])
def test_a_changed_description_is_not_gone_on_from(
    name: str, folder: Path, go_on: Callable[[], Path]
) -> None:
    content = read_json(folder / name)
    content["format"] = 1.0
    (folder / name).write_text(json.dumps(content))
    for read in (go_on, lambda: load_run(folder)):
        with pytest.raises(DafuseError, match=rf"{name} was changed or damaged.*; delete"):
            read()


def test_a_folder_from_before_the_seals_is_reported_and_gone_on_from(
    folder: Path, go_on: Callable[[], Path]
) -> None:
    for name in READ_AGAIN:
        content = read_json(folder / name)
        del content[SEAL]
        (folder / name).write_text(json.dumps(content, indent=1))
    assert load_run(folder).mark == f"2 of {TASKS} tasks"
    assert load_run(go_on()).mark == ""


def test_a_seal_holds_whatever_numbers_it_is_about(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    content = {"b": [0.1, 1e-300, float("inf"), 10**30, None], "a": {"é\u2028": True}, "2": (1, 2)}
    write_sealed(file, content)
    file.write_text(json.dumps(read_json(file)))  # spaced and escaped in another way
    assert read_sealed(file, "") == {**content, "2": [1, 2]}


def test_damaged_json_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    for damaged in ('{"cut', "", '{"a": 1' + "0" * 5000 + "}", "[" * 100_000):
        file.write_text(damaged)
        with pytest.raises(DafuseError, match=r"it\.json is not whole JSON.*; do that"):
            read_sealed(file, "do that")

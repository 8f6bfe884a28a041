"""Run folders in which something was changed: a run does not go on from them, and says why."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from dafuse.engine.config import RunConfig
from dafuse.engine.run import Bench, prepare, run
from dafuse.errors import DafuseError
from dafuse.files import read_json
from dafuse.methods.simplecil import SimpleCIL
from dafuse.report.runs import load_run
from dafuse.sealed import SEAL, read_sealed, write_sealed
from helpers.run_folders import rewrite
from helpers.small_datasets import save_arrays, small_dataset

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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.json", "config.json is a link"),
        ("provenance.json", "provenance.json is a link"),
        ("results.json", "results.json is a link"),
        ("log.txt", "log.txt is a link"),
        ("events.jsonl", "events.jsonl is a link"),
        (".lock", ".lock is a link"),
        ("checkpoints", "checkpoints is a link"),
        ("checkpoints/task-0002.json", "task-0002.json is a link"),
        ("checkpoints/task-0002.safetensors", "task-0002.safetensors is a link"),
    ],
)
def test_no_link_inside_the_folder_is_followed(
    name: str, said: str, folder: Path, go_on: Callable[[], Path]
) -> None:
    elsewhere = folder.parent / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    files = [elsewhere] if elsewhere.is_file() else sorted(elsewhere.iterdir())
    before = [file.read_bytes() for file in files]
    with pytest.raises(DafuseError, match=said):
        go_on()
    assert [file.read_bytes() for file in files] == before


def test_the_folder_itself_may_be_reached_by_a_link(
    folder: Path, config: RunConfig, bench: Bench
) -> None:
    (folder.parent / "by-link").symlink_to(folder)
    done = run(replace(config, out=str(folder.parent / "by-link")), bench=bench)
    assert load_run(done).mark == ""
    assert load_run(folder).mark == ""


READ_OR_WRITTEN = [*READ_AGAIN, "log.txt", "events.jsonl", ".lock", "checkpoints"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "gone", "empty"])
@pytest.mark.parametrize("name", [*READ_OR_WRITTEN, "checkpoints/task-0002.safetensors"])
def test_a_file_of_another_type_ends_in_a_sentence_or_in_the_same_run(
    name: str, kind: str, folder: Path, go_on: Callable[[], Path]
) -> None:
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    told = str(folder)
    try:
        assert load_run(go_on()).mark == ""
    except (DafuseError, OSError) as error:  # the command line makes a sentence of both
        told = str(error)
    assert str(folder) in told


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "more right than shown": (
        lambda record: record["results"]["correct"][1].__setitem__(0, 9_999),
        "9,999 right of 8",
    ),
    "a task more": (lambda record: record.update(task=2), "is of another task"),
    "no task": (lambda record: record.pop("task"), "task is missing"),
    "results of another type": (lambda record: record.update(results=[]), "results is not a"),
    "another format": (lambda record: record.update(format=7), "is not of a run of this version"),
    "other classes": (
        lambda record: record["results"]["classes"].__setitem__(0, "another"),
        "is not of this run",
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_record_forged_with_its_seal_is_not_gone_on_from(
    kind: str, folder: Path, go_on: Callable[[], Path]
) -> None:
    change, said = FORGED[kind]
    rewrite(folder / "checkpoints", "task-0002.json", change)
    with pytest.raises(DafuseError, match=said):
        go_on()


@pytest.mark.parametrize("content", [{}, {"other": torch.zeros(3)}, {"classifier/rows": None}])
def test_tensors_forged_with_their_hash_are_not_gone_on_from(
    content: dict[str, Any], folder: Path, go_on: Callable[[], Path]
) -> None:
    whole = {key: tensor for key, tensor in content.items() if tensor is not None}
    data = save(whole) if len(whole) == len(content) else b"no tensors"
    (folder / "checkpoints" / "task-0002.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    rewrite(folder / "checkpoints", "task-0002.json", lambda record: record.update(sha256=digest))
    with pytest.raises(DafuseError, match=r"is not of this run|is damaged or missing"):
        go_on()

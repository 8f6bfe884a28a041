"""The model's folder: what is damaged is refused by name, what no longer counts is gone."""

import hashlib
import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafuse.cli import start
from dafuse.errors import DafuseError
from dafuse.product import steps
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.product.ledger import make_ledger
from dafuse.product.summary import summarise
from dafuse.product.version import FORMAT, OF_FEW, Version, VersionRef
from dafuse.progress import Progress
from helpers.product_models import files, needed, pictures, taught, write_folders

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture
def model(tmp_path: Path, small_network: None) -> Path:
    taught(tmp_path / "model", {0: 6, 1: 6}, {2: 6, 3: 6})
    return tmp_path / "model"


def flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [flip_a_bit, lambda data: data[:-1], lambda data: b""])
def test_damage_anywhere_is_refused_by_name(model: Path, damage: Callable) -> None:
    current = ModelFolder(model).read(lambda version: version)
    needed = [f"objects/{digest}.safetensors" for digest in current.objects]
    for name in [*needed, "versions/0002.json"]:
        whole = (model / name).read_bytes()
        (model / name).write_bytes(damage(whole))
        with pytest.raises(DafuseError, match=name.replace(".", r"\.")) as caught:
            Classifier.open(model, device="cpu").learn(*pictures({7: 2}))  # predicting needs less
        assert "\n" not in str(caught.value)
        (model / name).write_bytes(whole)
    assert len(Classifier.open(model, device="cpu").classes) == 4


def test_missing_files_are_named(model: Path) -> None:
    record = ModelFolder(model).read(lambda version: version.classes[1])
    (model / "objects" / f"{record.record}.safetensors").unlink()
    classifier = Classifier.open(model, device="cpu")  # what predicts is whole
    with pytest.raises(DafuseError, match=record.record):
        classifier.learn(*pictures({7: 2}))
    assert 2 in classifier.info().damaged


def test_a_damaged_old_version_blocks_only_what_needs_it(model: Path) -> None:
    classifier = Classifier.open(model, device="cpu")
    classifier.rename("class 0", "zero")
    file = model / "versions" / "0001.json"
    file.write_bytes(file.read_bytes()[:-9])
    info = classifier.info()
    assert [version.number for version in info.history] == [2, 3]
    assert info.damaged.keys() == {1}
    (line,) = [line for line in info.lines() if line.startswith("    1  ")]
    assert "learned class 0" in line  # the history is complete
    assert str(file) in line.partition("; damaged: ")[2]
    ledger = classifier.ledger()
    assert "versions/0001.json" in ledger.lines()[-1]  # it is not looked into, and that is said
    assert f"But: {file} is damaged" in ledger.lines()[-2]
    classifier.learn(*pictures({7: 6}, seed=9))
    classifier.forget("zero")
    for _ in range(3):
        classifier.undo()
    assert classifier.version.number == 2
    with pytest.raises(DafuseError, match=r"nothing was undone.*0001\.json.*copy.*go on") as caught:
        classifier.undo()
    assert "\n" not in str(caught.value)
    assert Classifier.open(model, device="cpu").version.number == 2


def test_a_class_can_be_forgotten_for_good_though_an_old_version_is_damaged(model: Path) -> None:
    """Nobody knows what it held, so it goes, and all before it."""
    classifier = Classifier.open(model, device="cpu")
    classifier.rename("class 0", "zero")
    file = model / "versions" / "0001.json"
    file.write_bytes(file.read_bytes()[:-9])
    assert classifier.forget("class 3", for_good=True).versions == [1, 2, 3]
    assert "class 3" not in classifier.classes
    assert [path.name for path in (model / "versions").iterdir()] == ["0004.json"]
    with pytest.raises(DafuseError, match="nothing to undo"):
        classifier.undo()
    classifier.learn(*pictures({7: 6}, seed=9))
    classifier.undo()


@pytest.mark.parametrize("gone", [False, True])
def test_undo_does_not_go_where_a_tensor_is_damaged(model: Path, gone: bool) -> None:
    classifier = Classifier.open(model, device="cpu")
    old, current = classifier.folder.history()
    (digest, *_) = old.lasting - current.objects
    file = classifier.folder.object_file(digest)
    file.unlink() if gone else file.write_bytes(flip_a_bit(file.read_bytes()))
    before = files(model)
    with pytest.raises(DafuseError, match=f"nothing was undone.*{digest}.*copy of the model"):
        classifier.undo()
    assert files(model) == before
    info = classifier.info()
    assert info.damaged.keys() == {1}
    (line,) = [line for line in info.lines() if line.startswith("    1  ")]
    assert "learned class 0" in line
    assert f"{digest}.safetensors" in line.partition("; damaged: ")[2]
    classifier.rename("class 0", "zero")


@pytest.mark.parametrize("file", ["model.json", "versions/0002.json"])
def test_a_newer_format_asks_for_a_newer_dafuse(model: Path, file: str) -> None:
    rewrite(model, file, format=FORMAT + 1)
    with pytest.raises(DafuseError, match=rf"format {FORMAT + 1}.*newer dafuse"):
        Classifier.open(model, device="cpu")


@pytest.mark.parametrize("flip", [True, False])
def test_a_model_of_format_3_tells_by_its_history_whether_it_mirrors(
    model: Path, flip: bool
) -> None:
    version = Classifier.open(model, device="cpu").version
    file = model / "versions" / "0002.json"
    content = json.loads(file.read_text())
    assert content.pop("flip") is True
    history = [{**step, "flip": flip} for step in content["history"][:1]] + content["history"][1:]
    file.write_text(json.dumps(content))
    rewrite(model, "versions/0002.json", format=3, history=history)
    found = Classifier.open(model, device="cpu").version
    assert found == replace(version, flip=flip, history=history)


def test_a_model_of_format_2_is_read_and_learns_on(model: Path) -> None:
    """Its record of the network lacks what all networks had in common then."""
    expected = Classifier.open(model, device="cpu").version
    content = json.loads((model / "versions" / "0002.json").read_text())
    new = {"interpolation": "bicubic", "crop": "center", "file": ""}
    assert {key: content["backbone"].pop(key) for key in new} == new
    rewrite(model, "versions/0002.json", format=2, backbone=content["backbone"])
    rewrite(model, "model.json", format=2)
    classifier = Classifier.open(model, device="cpu")
    assert classifier.version == expected
    classifier.learn(*pictures({7: 2}))
    assert json.loads((model / "versions" / "0003.json").read_text())["format"] == OF_FEW
    classifier.undo()
    assert classifier.classes == expected.names


def rewrite(model: Path, file: str, **changes: Any) -> None:
    """Change a file as if another dafuse had written it: the hash is right."""
    content = json.loads((model / file).read_text())
    content.pop("sha256_of_contents", None)
    (model / file).write_text(json.dumps({**content, **changes}))
    if file != "model.json":
        digest = hashlib.sha256((model / file).read_bytes()).hexdigest()
        rewrite(model, "model.json", sha256=digest)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": "1"}'])
def test_what_is_not_a_model_is_refused(model: Path, text: str) -> None:
    (model / "model.json").write_text(text)
    with pytest.raises(DafuseError, match=r"model\.json"):
        Classifier.open(model, device="cpu")


def test_places_where_no_model_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name, expected in (
        ("nowhere", "no model .*dafuse learn"),
        ("file", "is a file"),
        ("photos", "not a dafuse model"),
        ("empty", "no model yet"),
    ):
        with pytest.raises(DafuseError, match=expected):
            Classifier.open(tmp_path / name)
    for name in ("file", "photos"):
        with pytest.raises(DafuseError, match=name):
            Classifier.create(tmp_path / name)
    for make in (Classifier.create, Classifier.open):
        with pytest.raises(DafuseError, match="the path of the model is empty"):
            make("")
    Classifier.create(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())


def test_a_version_costs_what_is_new_in_it(model: Path) -> None:
    before = files(model)
    classifier = Classifier.open(model, device="cpu")
    classifier.rename("class 0", "zero")
    new = files(model).keys() - before.keys()
    assert new == {"versions/0003.json"}
    old = classifier.version.classes
    classifier.learn(*pictures({7: 6}, seed=9))
    for record in old:  # the records of the others stay the files they were
        assert record.record in classifier.version.objects


def test_what_nothing_leads_to_is_removed(model: Path) -> None:
    folder = ModelFolder(model)
    stray = [model / "objects" / f"{'a' * 64}.safetensors", model / "versions" / "0009.json"]
    stray.append(model / "objects" / ".half-written.tmp")
    for file in stray:
        file.write_bytes(b"left by a process that was killed")
    Classifier.open(model, device="cpu").rename("class 0", "zero")
    assert not [file for file in stray if file.exists()]
    assert {file.stem for file in (model / "objects").iterdir()} == needed(folder)


def test_versions_kept_for_undo_go_without_what_predicts(model: Path) -> None:
    """It is solved again when undo comes back to them, to the same bits."""
    images, _ = pictures({0: 3, 2: 3}, seed=5)
    classifier = Classifier.open(model, device="cpu")
    before, version = classifier.probabilities(images), classifier.version
    predicts = classifier.folder.object_file(version.predict)
    classifier.learn(*pictures({7: 6}, seed=9))
    assert not predicts.exists()
    assert classifier.info().damaged == {}
    classifier.undo()
    assert classifier.version == version
    assert predicts.exists()
    assert np.array_equal(classifier.probabilities(images), before)
    assert np.array_equal(Classifier.open(model, device="cpu").probabilities(images), before)


def test_a_lesson_follows_an_undo_that_another_process_made(model: Path) -> None:
    classifier = Classifier.open(model, device="cpu")
    classifier.learn(*pictures({7: 6}, seed=9))
    steps.undo(ModelFolder(model))  # what predicts is not there, and nobody opened the model since
    report = classifier.learn(*pictures({8: 6}, seed=9))
    assert [one.name for one in report.new] == ["class 8"]
    assert "class 7" not in classifier.classes


def test_what_was_forgotten_for_good_is_not_solved_into_the_folder_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that solves an older version meanwhile writes nothing of it."""
    folder, keep_solved = ModelFolder(model), ModelFolder.keep_solved
    folder.object_file(folder.version(folder.current()).predict).unlink()

    def late(one: ModelFolder, version: Version, predict: dict[str, np.ndarray]) -> None:
        monkeypatch.setattr(ModelFolder, "keep_solved", keep_solved)
        Classifier.open(model, device="cpu").forget("class 0", for_good=True)
        keep_solved(one, version, predict)

    monkeypatch.setattr(ModelFolder, "keep_solved", late)
    Classifier.open(model, device="cpu")
    assert {file.stem for file in (model / "objects").iterdir()} == needed(folder)


def test_what_predicts_is_solved_again_where_it_cannot_be_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, _ = pictures({0: 3, 2: 3}, seed=5)
    classifier = Classifier.open(model, device="cpu")
    predicts = classifier.folder.object_file(classifier.version.predict)
    predicts.unlink()

    def full(*args: object) -> None:
        raise DafuseError("no space left")

    monkeypatch.setattr("dafuse.product.folder.write_atomically", full)
    again = Classifier.open(model, device="cpu")
    assert np.array_equal(again.probabilities(images), classifier.probabilities(images))
    assert not predicts.exists()


def test_a_model_without_its_model_json_is_not_begun_again(model: Path) -> None:
    (model / "model.json").unlink()
    before = files(model)
    for attempt in (
        lambda: Classifier.open(model),
        lambda: Classifier.create(model),
        lambda: main_learn(model),
    ):
        with pytest.raises(DafuseError, match=r"model.json is missing"):
            attempt()
    assert files(model) == before


def main_learn(model: Path) -> None:
    start("learn", [str(model), str(write_folders(model.parent / "photos", {5: 2, 6: 2}))])


@pytest.mark.parametrize("error", [DafuseError("the disk is full"), KeyboardInterrupt()])
def test_a_first_lesson_that_failed_at_its_last_write_does_not_count_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    model = Classifier.create(tmp_path / "new", device="cpu")
    with monkeypatch.context() as patched:
        patched.setattr("dafuse.product.folder.write_sealed", fail)
        with pytest.raises(type(error)):
            model.learn(*pictures({0: 2, 1: 2}))
    assert not ModelFolder(tmp_path / "new").exists()
    model.learn(*pictures({0: 2, 1: 2}))
    assert ModelFolder(tmp_path / "new").exists()


def test_what_a_killed_step_left_is_gone_after_the_next_even_if_that_fails(model: Path) -> None:
    stray = model / "versions" / "0009.json"
    stray.write_text("left by a process that was killed")
    with pytest.raises(DafuseError):
        Classifier.open(model, device="cpu").rename("class 0", "class 1")
    assert not stray.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"classes": []},
        {"calibration": {}},  # which only format 1 has
        {"numbers": {"sharpness": "x"}},
        {"numbers": {"sharpness": math.nan}},
        {"numbers": {"threshold": math.nan}},
        {"settings": {}},
    ],
)
def test_a_version_that_does_not_fit_together_is_refused_by_name(
    model: Path, change: dict[str, Any]
) -> None:
    folder = ModelFolder(model)
    file = folder.version_file(folder.current().number)
    content = json.loads(file.read_text())
    if "numbers" in change:
        change = {"numbers": {**content["numbers"], **change["numbers"]}}
    text = json.dumps({**content, **change})
    file.write_text(text)
    folder.point_to(VersionRef(folder.current().number, hashlib.sha256(text.encode()).hexdigest()))
    with pytest.raises(DafuseError, match=file.name):
        Classifier.open(model, device="cpu").predict(pictures({0: 1})[0])


def test_a_second_change_waits_and_says_so(model: Path) -> None:
    folder, said = ModelFolder(model), []
    waiting, entered = threading.Event(), threading.Event()

    class Heard(Progress):
        def say(self, line: str) -> None:
            said.append(line)
            waiting.set()

    def second() -> None:
        with folder.changing(Heard()):
            entered.set()

    with folder.changing(Progress()):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()
    assert "another process" in said[0]


def test_a_reader_follows_a_model_that_changes_under_it(model: Path) -> None:
    """The version it began with is undone, and its files removed, while it reads."""
    folder = ModelFolder(model)
    seen = []

    def slow(version: object) -> int:
        number = version.number  # type: ignore[attr-defined]
        seen.append(number)
        if len(seen) == 1:
            Classifier.open(model, device="cpu").undo()
        folder.arrays(version.predict)  # type: ignore[attr-defined]
        return number

    assert folder.read(slow) == 1
    assert seen == [2, 1]


class Busy(ModelFolder):
    """A folder where another process begins to write when this one reads, so many times."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__(path)
        self.times = times

    def version(self, wanted: VersionRef) -> Version:
        if self.times:
            self.times -= 1
            (self.path / "objects" / ".half.tmp").write_text("half")
        return super().version(wanted)


@pytest.mark.parametrize("read", [summarise, make_ledger])
def test_files_that_go_while_they_are_counted_are_no_damage(
    model: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[ModelFolder], Any]
) -> None:
    is_file = Path.is_file

    def going(path: Path) -> bool:
        found = is_file(path)
        if path.name == ".half.tmp":  # now it has its name
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", going)
    assert read(Busy(model, 3)).bytes == sum(map(len, files(model).values()))
    with pytest.raises(DafuseError, match="is being changed all the time"):
        read(Busy(model, 10**6))


def test_info_takes_no_version_that_is_being_undone_for_damaged(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable_history, undone = ModelFolder.readable_history, []

    def slow(folder: ModelFolder, last: Version) -> object:
        history = readable_history(folder, last)
        if not undone:
            undone.append(True)
            steps.undo(ModelFolder(model))  # by another process, which removes its files
        return history

    monkeypatch.setattr(ModelFolder, "readable_history", slow)
    info = summarise(ModelFolder(model))
    assert (info.version.number, info.damaged) == (1, {})


def test_what_was_forgotten_for_good_goes_when_the_model_is_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes also where the process was killed as soon as the new version counted."""
    classifier, delete = Classifier.open(model, device="cpu"), ModelFolder.remove_unreachable
    killed = iter([delete, lambda folder: pytest.exit("killed")])  # before and after the step
    monkeypatch.setattr(ModelFolder, "remove_unreachable", lambda folder: next(killed)(folder))
    with pytest.raises(pytest.exit.Exception):
        classifier.forget("class 0", for_good=True)
    monkeypatch.setattr(ModelFolder, "remove_unreachable", delete)
    assert len(list((model / "versions").iterdir())) == 3
    summarise(ModelFolder(model))
    assert [file.name for file in (model / "versions").iterdir()] == ["0003.json"]
    assert {file.stem for file in (model / "objects").iterdir()} == needed(ModelFolder(model))


def test_a_folder_in_place_of_a_file_is_damage_that_is_said_once(model: Path) -> None:
    """Both versions need the record."""
    version = ModelFolder(model).read(lambda version: version)
    file = model / "objects" / f"{version.classes[0].record}.safetensors"
    file.unlink()
    file.mkdir()
    info = Classifier.open(model, device="cpu").info()
    assert info.damaged.keys() == {1, 2}
    (line,) = [line for line in info.lines() if file.name in line]
    assert "Is a directory" in line
    (line,) = [line for line in info.lines() if line.endswith("damaged: as version 1 is")]
    with pytest.raises(DafuseError, match=f"{file.name} cannot be read"):
        Classifier.open(model, device="cpu").learn(*pictures({7: 2}))
    Classifier.open(model, device="cpu").rename("class 1", "one")  # which needs no record
    assert file.is_dir()

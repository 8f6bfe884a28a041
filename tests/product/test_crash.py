"""Real processes that are killed while they teach, and two that teach at once."""

import shutil
import signal
from pathlib import Path

import pytest

from dafuse.product.folder import ModelFolder
from faults.command import start
from helpers.processes import dafuse
from helpers.product_models import files, needed, write_folders

OPTIONS = ["--device", "cpu"]


def names(model: Path) -> list[str]:
    return ModelFolder(model).read(lambda version: version.names)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_folders(root / "first", {0: 2, 1: 2})
    write_folders(root / "second", {2: 2, 3: 2}, seed=1)
    return root


# of the second lesson: what predicts, two records, hashes, then the version, then model.json
POINTS = {
    "while it learns": ("dafuse.heads.sums", "ClassSums.add", 1),
    "between objects and version": ("os", "replace", 4),
    "between version and model.json": ("os", "replace", 5),
}


def test_killed_at_any_point_the_old_model_stays(photos: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert dafuse("learn", first, photos / "first", *OPTIONS).status == 0
    before = files(first)
    for number, point in enumerate(POINTS.values()):
        model = tmp_path / f"model {number}"
        shutil.copytree(first, model)
        lesson = ["learn", model, photos / "second", *OPTIONS]
        assert dafuse(*lesson, at=point).status == -signal.SIGKILL
        assert before.items() <= files(model).items()
        assert names(model) == ["class 0", "class 1"]
    assert len(files(model)) > len(before)  # the last was killed with all but model.json written
    assert dafuse(*lesson).status == 0
    assert names(model) == [f"class {number}" for number in range(4)]
    assert not list(model.rglob("*.tmp"))
    assert {file.stem for file in (model / "objects").iterdir()} == needed(ModelFolder(model))


# of a first lesson: five objects, then the version, then model.json
FIRST_POINTS = {
    "while it learns": POINTS["while it learns"],
    "between objects and version": ("os", "replace", 6),
    "between version and model.json": ("os", "replace", 7),
}


@pytest.mark.parametrize("point", FIRST_POINTS)
def test_a_first_lesson_that_was_killed_can_be_taught_again(
    photos: Path, tmp_path: Path, point: str
) -> None:
    model = tmp_path / "model"
    lesson = ["learn", model, photos / "first", *OPTIONS]
    assert dafuse(*lesson, at=FIRST_POINTS[point]).status == -signal.SIGKILL
    assert not (model / "model.json").exists()
    assert (model / "versions" / "0001.json").exists() == (point == [*FIRST_POINTS][-1])
    assert dafuse(*lesson).status == 0
    assert names(model) == ["class 0", "class 1"]
    assert len(ModelFolder(model).history()) == 1
    assert not list(model.rglob("*.tmp"))


def test_a_first_lesson_that_lacked_only_its_last_write_counts(
    photos: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    lesson = ["learn", model, photos / "first", *OPTIONS]
    assert dafuse(*lesson, at=("os", "replace", 7)).status == -signal.SIGKILL
    assert names(model) == ["class 0", "class 1"]


def test_two_that_make_one_model_at_once_both_count(photos: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    both = [start("learn", model, photos / part, *OPTIONS) for part in ("first", "second")]
    for process in both:
        ended = process.wait()
        assert ended.status == 0, ended.err
    assert sorted(names(model)) == [f"class {number}" for number in range(4)]
    assert len(ModelFolder(model).history()) == 2

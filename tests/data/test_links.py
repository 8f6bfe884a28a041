"""Links in folders of images: each real folder is read once, and nothing is taught as another."""

from pathlib import Path

import pytest

from dafuse.commands.predict import find_images
from dafuse.data.folders import AGAIN, AWAY, BACK, HIDDEN, NOWHERE, TWICE, folder
from dafuse.data.own_data import part_of
from dafuse.errors import DafuseError
from helpers.product_models import create, write_folders


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "photos", {0: 2, 1: 3})


def link(path: Path, target: str | Path) -> Path:
    path.symlink_to(target)
    return path


def found(root: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the number of each class's images, and the names and reasons of what is left out."""
    listed = part_of(root, "train")
    counts = {name: listed.names.count(name) for name in dict.fromkeys(listed.names)}
    return counts, [(Path(one.name).name, one.why) for one in listed.skipped]


BOTH = {"class 0": 2, "class 1": 3}


@pytest.mark.parametrize(
    ("name", "target", "skipped"),
    [
        ("class 0/up", "..", [("up", BACK)]),
        ("class 0/here", ".", [("here", BACK)]),
        ("class 0/far", "../..", [("far", BACK)]),
        ("class 0/other", "../class 1", [("other", AWAY)]),
        ("class 0/away", "../../away", [("away", AWAY)]),
        ("up", "..", [("up", BACK)]),
        ("here", ".", [("here", BACK)]),
        ("a copy", "class 1", [("a copy", AGAIN)]),
        ("class 2", "nowhere", [("class 2", NOWHERE)]),
        ("class 0/gone", "nowhere", [("gone", "not an image")]),
        ("class 0/loop", "loop", [("loop", "not an image")]),
    ],
)
def test_links_that_are_not_followed(
    photos: Path, name: str, target: str, skipped: list[tuple[str, str]]
) -> None:
    write_folders(photos.parent / "away", {2: 1})
    made = link(photos / name, target)
    assert found(photos) == (BOTH, skipped)
    if target not in ("nowhere", "loop"):
        with pytest.raises(DafuseError, match=f"{made}: .*; remove the link"):
            folder(photos)


def test_links_within_a_class_are_read_once(photos: Path) -> None:
    write_folders(photos / "class 0", {5: 3})
    link(photos / "class 0" / "again", "class 5")
    assert found(photos) == ({"class 0": 5, "class 1": 3}, [])


def test_a_class_may_be_a_link(photos: Path) -> None:
    """It leads to a folder elsewhere or in a hidden store; two links to one are one class."""
    away = write_folders(photos.parent / "away", {2: 4})
    (photos / ".store").mkdir()
    (photos / "class 1").rename(photos / ".store" / "1")
    link(photos / "class 1", ".store/1")
    link(photos / "class 2", away / "class 2")
    link(photos / "class 3", away / "class 2")
    assert found(photos) == (
        {**BOTH, "class 2": 4},
        [(".store", HIDDEN), ("class 3", f"{TWICE} {photos / 'class 2'}")],
    )


@pytest.mark.usefixtures("small_network")
def test_a_file_by_two_names_is_taught_once(photos: Path, tmp_path: Path) -> None:
    """Links to single files are as good as files, but not as pictures of two classes."""
    first = sorted((photos / "class 0").iterdir())[0]
    link(photos / "class 1" / "same.png", first)
    link(photos / "class 0" / "same.png", first)
    report = create(tmp_path / "model").learn(photos)
    assert [one.images for one in report.classes] == [2, 3]
    (skipped,) = report.skipped
    assert skipped.startswith(f"{photos / 'class 1' / 'same.png'}: the same image is in class 0")


def test_asked_about_every_folder_is_read_once(photos: Path) -> None:
    link(photos / "class 0" / "up", "..")
    link(photos / "class 0" / "other", "../class 1")
    away = write_folders(photos.parent / "away", {2: 4})
    link(photos / "one", away)
    link(photos / "two", away)
    (photos / ".cache").mkdir()
    images, _, skipped = find_images([str(photos)])
    assert len(images) == 9
    assert [(Path(one.name).name, one.why) for one in skipped] == [
        (".cache", HIDDEN),
        ("up", BACK),
        ("two", f"{TWICE} {photos / 'one'}"),
    ]

"""Links inside a model's folder: nothing is opened, truncated or deleted through one."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from helpers.product_models import files, pictures, taught

pytestmark = [
    pytest.mark.usefixtures("small_network"),
    pytest.mark.skipif(os.name != "posix", reason="links of POSIX"),
]
CHANGES: list[Callable[[Classifier], object]] = [
    lambda one: one.learn(*pictures({7: 2}, seed=9)),
    lambda one: one.rename("class 0", "zero"),
    lambda one: one.forget("class 0", for_good=True),
    lambda one: one.undo(),
    lambda one: one.trim(1),
]


@pytest.fixture
def model(tmp_path: Path, small_network: None) -> Path:
    taught(tmp_path / "model", {0: 3, 1: 3}, {2: 3}, method="lift")
    return tmp_path / "model"


def outside(model: Path, name: str) -> Path:
    """Move a part of the model out of it, add what is not of any model, and link to it."""
    target = model.parent / "elsewhere" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(model / name, target)
    (model / name).symlink_to(target)
    if target.is_dir():
        for other in (f"{'a' * 64}.safetensors", "0009.json", ".half.1234abcd.tmp"):
            (target / other).write_text("of somebody else")
    return target


@pytest.mark.parametrize("name", [".lock", "objects", "versions", "model.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_link_leads_to_stays_as_it_is(
    model: Path, name: str, change: Callable[[Classifier], object]
) -> None:
    classifier = Classifier.open(model, device="cpu")
    target = outside(model, name)
    if name == ".lock":
        target.write_text("a letter")
    before = files(target.parent)
    with pytest.raises(DafuseError, match=rf"model/{name} is a link.*put what it leads to") as said:
        change(classifier)
    assert "\n" not in str(said.value)
    assert "restore" not in str(said.value)
    assert "delete" not in str(said.value)
    assert files(target.parent) == before
    if name == ".lock":
        assert target.read_text() == "a letter"


@pytest.mark.parametrize("name", ["objects", "versions", "model.json", "versions/0002.json"])
def test_no_model_is_opened_through_a_link(model: Path, name: str) -> None:
    outside(model, name)
    with pytest.raises(DafuseError, match=rf"model/{name} is a link"):
        Classifier.open(model, device="cpu")


def test_a_link_that_leads_nowhere_is_named_and_nothing_is_made_there(model: Path) -> None:
    (model / "model.json").unlink()
    (model / "model.json").symlink_to(model.parent / "nowhere.json")
    with pytest.raises(DafuseError, match=r"model/model\.json is a link.*, or delete it"):
        Classifier.open(model, device="cpu")
    assert not (model.parent / "nowhere.json").exists()


def test_strangers_are_listed_as_the_links_they_are(model: Path) -> None:
    letter = model.parent / "letter"
    letter.write_text("x" * 10_000)
    classifier = Classifier.open(model, device="cpu")
    before = classifier.info().bytes
    (model / "note").symlink_to(letter)
    assert classifier.info().bytes < before + 1_000
    (entry,) = [one for one in classifier.ledger().entries if one.file == "note"]
    assert entry.bytes < 1_000
    assert "not part of the model, and not looked into: note." in classifier.ledger().lines()[-1]
    (model / "objects" / f"{'b' * 64}.safetensors").symlink_to(letter)
    classifier.rename("class 0", "zero")
    assert letter.read_text() == "x" * 10_000
    assert not os.path.lexists(model / "objects" / f"{'b' * 64}.safetensors")


def test_a_model_that_is_reached_by_a_link_goes_on_working(model: Path) -> None:
    link = model.parent / "link"
    link.symlink_to(model, target_is_directory=True)
    classifier = Classifier.open(link, device="cpu")
    for change in CHANGES[:2]:
        change(classifier)
    assert Classifier.open(model, device="cpu").classes == ["zero", "class 1", "class 2", "class 7"]
    classifier.undo()
    assert link.is_symlink()

"""Versions and objects that someone made by hand, with the right hashes: a sentence, no traceback.

The hash says that a file is the one that was written down, not that dafuse wrote it.
"""

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from dafuse.cli import main
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.product.version import (
    BACKBONE,
    CLASS,
    REF,
    VERSION,
    BackboneRecord,
    ClassRecord,
    Version,
    VersionRef,
)
from dafuse.sealed import SEAL, write_sealed
from helpers.product_models import files, pictures, taught, write_folders

pytestmark = pytest.mark.usefixtures("small_network")
ESCAPE = "\x1b[2J"
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def model(tmp_path: Path, small_network: None) -> Path:
    taught(tmp_path / "model", {0: 3, 1: 3}, {2: 3}, method="lift")
    return tmp_path / "model"


def forge_text(model: Path, text: str) -> None:
    """Make this the version that counts, as far as its hash says."""
    (model / "versions" / "0002.json").write_text(text)
    pointer = json.loads((model / "model.json").read_text())
    pointer["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    pointer.pop(SEAL)
    write_sealed(model / "model.json", pointer)


def forge(model: Path, *path: str | int, value: Any = None) -> None:
    """Put a value at this place of the version; None deletes what is there."""
    content = json.loads((model / "versions" / "0002.json").read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = copy.deepcopy(value)
    forge_text(model, json.dumps(content))


def forge_object(model: Path, old: str, change: Change) -> None:
    """Replace an object by another of the right hash."""
    arrays = load((model / "objects" / f"{old}.safetensors").read_bytes())
    change(arrays)
    data = save({name: np.ascontiguousarray(one) for name, one in arrays.items()})
    new = hashlib.sha256(data).hexdigest()
    (model / "objects" / f"{new}.safetensors").write_bytes(data)
    forge_text(model, (model / "versions" / "0002.json").read_text().replace(old, new))


def test_every_field_of_a_version_has_a_shape() -> None:
    records = {Version: VERSION, VersionRef: REF, BackboneRecord: BACKBONE, ClassRecord: CLASS}
    for record, shape in records.items():
        assert {one.name for one in fields(record)} == {*shape.required, *shape.optional}


NAMES = ["", " x", "a/b", "unknown", "a\nb", ESCAPE, "x" * 200, "class 1"]
WRONG: list[tuple[tuple[str | int, ...], list[Any]]] = [
    (("classes", 0, "name"), [*NAMES, 7, []]),
    (("classes", 0, "images"), [-1, 1.5, "3", True, 10**400]),
    (("classes", 0, "id"), [-1, 1, 99]),
    (("classes", 0, "record"), ["../../model", 5]),
    (("classes",), [{}, "x", [[]], [{}]]),
    (("number",), [1, 5, 10**6]),
    (("backbone", "size"), [0, -1, 16, 33, 4096, 10**9, "32"]),
    (("backbone", "resize"), [0, 31, 2**14, 36.0]),
    (("backbone", "mean"), [[], [float("nan")] * 3, ["x"] * 3, 0.5]),
    (("backbone", "std"), [[0.0, 0.0, 0.0]]),
    (("backbone", "crop"), ["none"]),
    (("parent", "number"), [2, 0, -1]),
    (("parent", "sha256"), ["x"]),
    (("seed",), [-1, "x"]),
    (("flip",), [None, 1, "no"]),
    (("key",), ["xyz", "0", 5]),
    (("numbers", "sharpness"), [float("inf"), "x", None]),
    (("numbers", "familiar_start"), [-1, 10**6]),
    (("settings", "head"), [[], "nothing"]),
    (("history",), [[1], [{}], [{"did": "hack", "when": "", "version": 1}], [[[[[[[[[]]]]]]]]]]),
    (("history", 0, "classes"), [[1], [{}], {}]),
    (("history", 0, "when"), [None, 5]),
    (("predict",), ["", "x"]),
]


@pytest.mark.parametrize(("path", "values"), WRONG, ids=[".".join(map(str, w[0])) for w in WRONG])
def test_a_forged_version_is_refused_in_a_sentence(
    model: Path, path: tuple[str | int, ...], values: list[Any]
) -> None:
    for value in values:
        whole = (model / "versions" / "0002.json").read_text()
        forge(model, *path, value=value)
        with pytest.raises(DafuseError) as said:
            Classifier.open(model, device="cpu").predict(pictures({0: 1})[0])
        assert "\n" not in str(said.value)
        forge_text(model, whole)


@pytest.mark.parametrize(
    "change", [lambda one: one.rename("class 0", "zero"), lambda one: one.learn(*pictures({7: 2}))]
)
def test_no_step_deletes_the_file_of_a_version_that_says_another_number(
    model: Path, change: Callable[[Classifier], object]
) -> None:
    classifier = Classifier.open(model, device="cpu")
    forge(model, "number", value=5)
    before = files(model)
    with pytest.raises(DafuseError, match=r"0002\.json says that it is version 5: restore it"):
        change(classifier)
    assert files(model) == before


@pytest.mark.parametrize(
    "wrong",
    [
        *({"version": one} for one in ("2", 2.0, True, 0, -1, 10**40)),
        *({"oldest": one} for one in ("1", 1.5, True, 0, 3)),
        *({"sha256": one} for one in ("../../x", "", 7, None)),
        *({"format": one} for one in (-3, 0, "3", True)),
    ],
    ids=str,
)
def test_a_forged_pointer_is_refused_in_a_sentence(model: Path, wrong: dict[str, Any]) -> None:
    pointer = json.loads((model / "model.json").read_text())
    pointer.pop(SEAL)
    write_sealed(model / "model.json", pointer | wrong)
    with pytest.raises(DafuseError, match=r"model\.json is not of a dafuse model"):
        ModelFolder(model).current()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 10_000, "[]", "null", '"x"', '{"format": true}']
)
def test_json_that_is_no_version_is_refused(model: Path, text: str) -> None:
    forge_text(model, text)
    with pytest.raises(DafuseError, match=r"0002\.json"):
        Classifier.open(model, device="cpu")


def spoil(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda arrays: arrays.update({name: change(arrays[name])})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weights", lambda one: one[:, :-1]),
        ("weights", lambda one: one[0]),
        ("bias", lambda one: np.full_like(one, np.nan)),
        ("bias", lambda one: np.full_like(one, np.finfo(one.dtype).max)),
        ("bias", lambda one: one.astype(bool)),
        ("step", lambda one: one[:-1]),
    ],
)
def test_a_forged_object_that_predicts_is_refused(
    model: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    version = ModelFolder(model).read(lambda version: version)
    forge_object(model, version.predict, spoil(name, change))
    with np.errstate(all="ignore"), pytest.raises(DafuseError):
        Classifier.open(model, device="cpu").predict(pictures({0: 1})[0])


@pytest.mark.parametrize(
    "take",
    [
        lambda one: one.learn(*pictures({0: 3, 5: 3}, seed=8)),
        lambda one: one.forget("class 1"),
    ],
    ids=["learn", "forget"],
)
def test_forged_hashes_of_pictures_and_evidence_are_refused(
    model: Path, take: Callable[[Classifier], object]
) -> None:
    version = ModelFolder(model).read(lambda version: version)
    key = f"classes/{version.key}"
    changes: list[tuple[str, Change]] = [
        (version.seen[0], lambda arrays: arrays.pop(key)),
        (version.seen[0], spoil(key, lambda one: one[:1])),
        (version.seen[0], spoil(key, lambda one: one.astype(np.int64))),
        (version.shared, spoil("evidence", lambda one: one[:1])),
        (version.shared, spoil("evidence", lambda one: one * np.nan)),
        (version.shared, spoil("evidence", lambda one: one - 1e9)),
    ]
    for number, (digest, change) in enumerate(changes):
        copied = Path(shutil.copytree(model, model.parent / f"copy {number}"))
        forge_object(copied, digest, change)
        with pytest.raises(DafuseError) as said:
            take(Classifier.open(copied, device="cpu"))
        assert "safetensors" in str(said.value) or "0002.json" in str(said.value)


def test_no_escape_of_a_file_reaches_the_terminal(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(model, "history", 0, "how", value=f"{ESCAPE}\x9b2J\rhow")
    forge(model, "history", 0, "when", value=f"{ESCAPE}when")
    (model / f"str{ESCAPE}anger").write_text("")
    photos = write_folders(tmp_path / "photos", {0: 1})
    (photo,) = photos.rglob("*.png")
    photo.rename(photos / f"{ESCAPE}.png")
    (photos / f"{ESCAPE}broken.png").write_text("")
    for command in (
        ["info", str(model)],
        ["ledger", str(model)],
        ["predict", str(model), str(photos), "--device", "cpu"],
        ["predict", str(model), str(photos), "--device", "cpu", "--json"],
        ["predict", str(model), str(photos), "--device", "cpu", "--csv"],
        ["info", str(tmp_path / ESCAPE)],
    ):
        try:
            main(command)
        except SystemExit as end:
            assert end.code in (1, 2)  # noqa: PT017
        said = "".join(capsys.readouterr())
        assert "x1b[2J" in said or "u001b[2J" in said
        assert not {"\x1b", "\x9b", "\r"} & set(said)

"""Names of classes: any in a benchmark's data, plain ones in a model that is taught."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dafuse.data.class_names import LONGEST_NAME, same_name, taught_name
from dafuse.data.folders import folder
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from helpers.product_models import create, files, pictures, taught, write_folders

CAFE, CAFE_APART = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
REFUSED = [
    ("unknown", "choose another"),
    ("Unknown", "choose another"),
    ("UNKNOWN\u200d", "choose another"),
    ("", "empty"),
    (" \t", "empty"),
    ("\u200c", "empty"),
    (" cat", "space"),
    ("cat\n", "space"),
    ("cat\ndog", "one line"),
    ("\x1b[31mcat\x1b[0m", "can be shown"),
    ("cat\u202egod", "can be shown"),
    ("cat\udce9", "can be shown"),
    ("cats/black", "slashes"),
    ("cats\\black", "slashes"),
    ("c" * (LONGEST_NAME + 1), "at most 80"),
]


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_names_that_no_model_is_taught(name: str, why: str) -> None:
    with pytest.raises(DafuseError, match=why) as refused:
        taught_name(name)
    said = str(refused.value)
    assert said.isprintable()
    assert repr(name[:LONGEST_NAME])[:-1] in said


@pytest.mark.parametrize(
    "name", ["unknown bird", "c" * LONGEST_NAME, "\u732b", "\u0645\u06cc\u200c\u062e"]
)
def test_names_that_a_model_is_taught(name: str) -> None:
    assert taught_name(name) == name


def test_one_spelling_is_kept() -> None:
    assert CAFE != CAFE_APART
    assert taught_name(CAFE_APART) == CAFE
    assert same_name(CAFE_APART.upper()) == same_name(CAFE)
    assert same_name("cafe") != same_name(CAFE)


@pytest.mark.usefixtures("small_network")
class TestTaught:
    def refuses(self, classifier: Classifier, root: Path, name: str) -> None:
        before = files(classifier.folder.path)
        images, _ = pictures({2: 2})
        for change in (
            lambda: classifier.learn(images, ["fine", name]),
            lambda: classifier.learn(root),
            lambda: classifier.rename("class 0", name),
        ):
            with pytest.raises(DafuseError, match="no class can be called"):
                change()
        assert files(classifier.folder.path) == before

    def test_the_server_stages_one_spelling(self) -> None:
        pytest.importorskip("fastapi")
        from dafuse.product.server.staging import Staging
        from dafuse.product.server.uploads import Sent, Upload

        staging = Staging(most=5)
        sent = Sent([Upload("1.png", b"", 64)])
        pixels = [np.zeros((8, 8, 3), np.uint8)]
        assert staging.add(CAFE_APART, sent, pixels, [CAFE_APART]) == (1, [])
        assert staging.add(CAFE, sent, pixels, [CAFE_APART]) == (2, [])
        assert staging.counts == {CAFE: 2}
        assert staging.drop(CAFE_APART) == 2

    @pytest.mark.parametrize("name", ["Unknown", "cat\ndog", " cat", "c" * 81])
    def test_by_no_way_but_benchmarks_take_them(self, tmp_path: Path, name: str) -> None:
        root = write_folders(tmp_path / "photos", {2: 2, 3: 2})
        (root / "class 2").rename(root / name)
        self.refuses(taught(tmp_path / "model", {0: 3, 1: 3}), root, name)
        assert name in folder(root).classes

    def test_two_spellings_are_one_class(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        images, _ = pictures({0: 4})
        report = classifier.learn(images, [CAFE_APART, CAFE, "tea", "tea"])
        assert classifier.classes == [CAFE, "tea"]
        report = classifier.learn(pictures({0: 1}, seed=1)[0], [CAFE_APART])
        assert [one.known_from for one in report.more] == [3]
        with pytest.raises(DafuseError, match="differ only in case"):
            classifier.learn(images[:1], [CAFE_APART.upper()])
        with pytest.raises(DafuseError, match="already"):
            classifier.rename("tea", CAFE_APART.upper())
        classifier.rename("tea", CAFE_APART + "s")
        assert classifier.classes == [CAFE, CAFE + "s"]

    def test_two_spellings_of_folders_are_one_class(self, tmp_path: Path) -> None:
        root = write_folders(tmp_path / "photos", {0: 2, 1: 3})
        (root / "class 0").rename(root / CAFE)
        (root / "class 1").rename(root / CAFE_APART)
        if len(list(root.iterdir())) == 1:
            pytest.skip("this file system knows one spelling only")
        report = create(tmp_path / "model").learn(root)
        assert [(one.name, one.images) for one in report.classes] == [(CAFE, 5)]

    def test_a_model_with_another_spelling_learns_on(self, tmp_path: Path) -> None:
        """Older models may have one."""
        classifier = taught(tmp_path / "model", {0: 3, 1: 3})
        version = classifier.version
        records = [replace(version.classes[0], name=CAFE_APART), version.classes[1]]
        classifier.folder.publish(replace(version, classes=records))
        classifier.refresh()
        report = classifier.learn(pictures({0: 2})[0], [CAFE, CAFE])
        assert report.new == []
        assert classifier.classes == [CAFE_APART, "class 1"]

    def test_the_estimator_answers_with_the_spelling_it_was_given(self) -> None:
        pytest.importorskip("sklearn")
        from dafuse import DafuseClassifier

        images, _ = pictures({0: 4, 1: 4})
        labels = [CAFE_APART] * 4 + ["tea"] * 4
        estimator = DafuseClassifier(device="cpu").fit(images, labels)
        assert set(estimator.predict(images)) == {CAFE_APART, "tea"}
        assert np.allclose(estimator.predict_proba(images).sum(1), 1, atol=1e-5)
        with pytest.raises(ValueError, match="accents"):
            estimator.partial_fit(images[:1], [CAFE])

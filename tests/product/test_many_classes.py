"""A model of many classes: a lesson reads and writes its own classes, and nothing is lost by it."""

from pathlib import Path

import numpy as np
import pytest

from dafuse.backbones.extractor import session_of
from dafuse.heads.factored import FactoredHead
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import load_method
from dafuse.product.predictor import ExportedModel, most_probable
from dafuse.taught.lift import TaughtLift
from helpers.product_models import files, needed, pictures, taught

pytestmark = pytest.mark.usefixtures("small_network")
FIRST, SECOND, THIRD = {0: 6, 1: 6, 2: 6}, {3: 6, 4: 6}, {1: 5, 5: 6}


@pytest.fixture(autouse=True)
def four_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafuse.heads.many.MANY_CLASSES", 4)
    monkeypatch.setattr("dafuse.heads.many.MANY", 0)


@pytest.fixture
def model(tmp_path: Path, small_network: None, four_are_many: None) -> Classifier:
    return taught(tmp_path / "model", FIRST, SECOND, THIRD)


def probabilities(classifier: Classifier) -> np.ndarray:
    return classifier.probabilities(pictures(dict.fromkeys(range(6), 3), seed=9)[0])


def totals(classifier: Classifier) -> dict[str, np.ndarray]:
    method = classifier.blank_method(classifier.version)
    assert isinstance(method, TaughtLift)
    load_method(classifier.folder, classifier.version, method)
    return method.many.derived()


def test_few_become_many_with_a_lesson_and_few_again(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", FIRST)
    assert (classifier.version.derived, type(classifier.model.head).__name__) == ("", "Head")
    classifier.learn(*pictures(SECOND, seed=1))
    assert isinstance(classifier.model.head, FactoredHead)
    images, labels = pictures(dict.fromkeys(range(5), 3), seed=9)
    right = [
        one.top[0][0] == name for one, name in zip(classifier.predict(images), labels, strict=True)
    ]
    assert np.mean(right) > 0.7
    classifier.forget("class 3", "class 4")
    assert type(classifier.model.head).__name__ == "Head"
    assert not classifier.version.derived
    only_first = taught(tmp_path / "first", FIRST)
    shown = images[:9]
    answers = [[one.name for one in each.predict(shown)] for each in (classifier, only_first)]
    assert answers[0] == answers[1]


def test_a_lesson_reads_and_writes_the_records_of_its_own_classes_only(
    model: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {one.name: one.record for one in model.version.classes}
    read: list[str] = []
    arrays = ModelFolder.arrays

    def noted(folder: ModelFolder, digest: str) -> dict[str, np.ndarray]:
        read.append(digest)
        return arrays(folder, digest)

    monkeypatch.setattr(ModelFolder, "arrays", noted)
    model.learn(*pictures({2: 4, 6: 5}, seed=3))
    assert set(read) & set(before.values()) == {before["class 2"]}
    after = {one.name: one.record for one in model.version.classes}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"class 2", "class 6"}


def test_opened_again_it_answers_and_learns_alike(model: Classifier) -> None:
    again = Classifier.open(model.folder.path, device="cpu")
    assert np.array_equal(probabilities(again), probabilities(model))
    again.learn(*pictures({7: 6}, seed=4))
    model.refresh()
    assert np.array_equal(probabilities(again), probabilities(model))
    assert model.ledger().bytes == sum(map(len, files(model.folder.path).values()))


def test_totals_are_made_again_from_the_records(model: Classifier) -> None:
    """They differ by rounding only, and so does what is learned from there."""
    kept, before = totals(model), probabilities(model)
    model.folder.object_file(model.version.derived).unlink()
    again = Classifier.open(model.folder.path, device="cpu")
    assert np.array_equal(probabilities(again), before)
    made = totals(again)
    for name, array in kept.items():
        assert np.allclose(made[name], array, rtol=1e-9, atol=1e-9 * np.abs(array).max()), name
    again.learn(*pictures({7: 6}, seed=4))
    assert again.folder.has_totals(again.version)


def test_undo_goes_back_to_the_same_answers_and_learns_on(model: Classifier) -> None:
    before = probabilities(model)
    model.learn(*pictures({7: 6}, seed=4))
    taught_7 = probabilities(model)
    model.undo()
    assert np.array_equal(probabilities(model), before)
    assert not model.folder.has_totals(model.version)
    model.learn(*pictures({7: 6}, seed=4))
    assert np.allclose(probabilities(model), taught_7, atol=1e-6)


def test_what_is_forgotten_for_good_leaves_nothing_behind(
    tmp_path: Path, model: Classifier
) -> None:
    """The totals are those of a model that never knew the class, but for rounding."""
    model.forget("class 5", for_good=True)
    other = taught(tmp_path / "other", FIRST, SECOND)
    images, labels = pictures(THIRD, seed=2)
    of_class_1 = [row for row, name in enumerate(labels) if name == "class 1"]
    other.learn([images[row] for row in of_class_1], ["class 1"] * len(of_class_1))
    found, wanted = totals(model), totals(other)
    for name, array in wanted.items():
        assert np.allclose(found[name], array, rtol=1e-8, atol=1e-9 * np.abs(array).max()), name
    assert len(model.folder.numbers()) == 1
    assert needed(model.folder) == {file.stem for file in model.folder.path.glob("objects/*")}


@pytest.mark.parametrize("few", [False, True])
def test_merged_models_know_what_one_taught_everything_would(tmp_path: Path, few: bool) -> None:
    one = taught(tmp_path / "one", FIRST, SECOND)
    other = taught(tmp_path / "other", {5: 6, 6: 6} if few else {5: 6, 6: 6, 7: 6, 8: 6})
    parts = [other.folder.path, one.folder.path] if few else [one.folder.path, other.folder.path]
    merged = Classifier.merge(parts, tmp_path / "merged", device="cpu")
    assert merged.folder.has_totals(merged.version)
    merged.folder.require_whole(merged.version)
    kept = totals(merged)
    merged.folder.object_file(merged.version.derived).unlink()
    for name, array in totals(merged).items():
        assert np.allclose(kept[name], array, rtol=1e-9, atol=1e-9 * np.abs(array).max()), name
    names = [one.top[0][0] for one in merged.predict(pictures({0: 3, 5: 3}, seed=9)[0])]
    assert (
        sum(
            name == wanted
            for name, wanted in zip(names, ["class 0"] * 3 + ["class 5"] * 3, strict=True)
        )
        >= 4
    )


def test_the_exported_file_answers_as_the_model(tmp_path: Path, model: Classifier) -> None:
    found = model.export(tmp_path / "model.onnx")
    assert found.difference.largest < 1e-4
    exported = ExportedModel(tmp_path / "model.onnx")
    images, _ = pictures(dict.fromkeys(range(6), 3), seed=9)
    for one, other in zip(
        model.predict(images, top=6), exported.predict(images, top=6), strict=True
    ):
        assert one.familiarity == pytest.approx(other.familiarity, abs=1e-2)
        assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-4)
    assert session_of((tmp_path / "model.onnx").read_bytes()) is not None


def test_damaged_totals_are_named(model: Classifier) -> None:
    file = model.folder.object_file(model.version.derived)
    file.write_bytes(file.read_bytes()[:-8] + b"whatever")
    with pytest.raises(Exception, match="is damaged or was changed"):
        model.learn(*pictures({7: 6}, seed=4))
    assert len(model.classes) == 6


@pytest.mark.parametrize("top", [1, 2, 5, 50, 99])
def test_the_most_probable_are_those_of_a_stable_sort(top: int) -> None:
    rng = np.random.default_rng(0)
    for classes in (1, 50, 127, 1000, 20_000):
        shares = rng.integers(0, 8 * classes, classes) / 8  # some are equal
        expected = np.argsort(-shares, kind="stable")[:top]
        assert np.array_equal(most_probable(shares, top), expected)

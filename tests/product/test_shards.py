"""Lessons of many images, which are read shard by shard."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dafuse.product import shards
from dafuse.product.classifier import Classifier
from dafuse.product.objects import read_arrays
from dafuse.product.seen import MetSoFar
from dafuse.progress import Bar, Progress
from dafuse.taught.contract import CLASS, InShards
from dafuse.taught.lift import TaughtLift
from dafuse.taught.table import LIGHT
from helpers.product_models import create, pictures, write_folders
from helpers.taught_methods import SETTINGS, make

LESSON = {0: 23, 1: 9, 2: 18, 3: 1, 4: 14}
in_shards = pytest.mark.parametrize("method", ["lift", "simplecil"])


@pytest.fixture
def sharded(small_network: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lessons of more than 10 images be streamed, and try 13 of them."""
    set_size(monkeypatch, 10, 13)


def set_size(monkeypatch: pytest.MonkeyPatch, shard: int, tried: int = 1000) -> None:
    monkeypatch.setattr(shards, "SHARD", shard)
    monkeypatch.setattr(shards, "TRIED_ON", tried)


def class_arrays(model: Classifier) -> dict[str, np.ndarray]:
    arrays = read_arrays(model.folder, model.version)
    return {name: array for name, array in arrays.items() if name.startswith(CLASS)}


@in_shards
def test_sums_of_shards_are_the_sums_of_the_lesson(
    small_network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """All directions fit into the records, and a lesson is added to a model that knows more."""
    models = []
    settings: dict[str, Any] = {"rank": 60, "penalty": 0.1} if method == "lift" else {}
    for size in (1000, 10):
        set_size(monkeypatch, 1000)
        model = create(tmp_path / str(size), method=method, **settings)
        model.learn(*pictures({1: 6, 5: 7}, seed=3))
        set_size(monkeypatch, size, 13)
        model.learn(*pictures(LESSON, seed=1))
        models.append(model)
    whole, parts = models
    assert parts.classes == whole.classes == [f"class {n}" for n in (1, 5, 0, 2, 3, 4)]
    images = [[record.images for record in model.version.classes] for model in models]
    assert images[0] == images[1] == [15, 7, 23, 18, 1, 14]
    pixels = [[record.pixels for record in model.version.classes] for model in models]
    assert pixels[0] == pixels[1]
    asked = pictures(dict.fromkeys(range(6), 5), seed=8)[0]
    scores = [model.model.head.scores(model.features(asked)) for model in models]
    step = 1e-3 if method == "lift" else 1e-6  # records rest in whole steps, weights in float32
    assert np.abs(scores[0] - scores[1]).max() < step * np.abs(scores[0]).max()
    if method == "simplecil":
        for name, array in class_arrays(whole).items():
            np.testing.assert_allclose(
                class_arrays(parts)[name], array, rtol=1e-6
            )  # batches differ


@pytest.mark.usefixtures("sharded")
class TestSharded:
    @in_shards
    def test_the_report_counts_all_images_and_tries_some(self, tmp_path: Path, method: str) -> None:
        report = create(tmp_path / "model", method=method).learn(*pictures(LESSON))
        assert {int(one.name[-1]): one.images for one in report.classes} == LESSON
        assert {int(one.name[-1]): one.known_from for one in report.classes} == LESSON
        assert 11 <= report.tested <= 13
        assert "of a sample of " in "\n".join(report.lines())
        again = Classifier.open(tmp_path / "model", device="cpu").learn(*pictures(LESSON))
        assert (again.again, again.classes) == (sum(LESSON.values()), [])

    def test_the_order_of_the_images_does_not_matter_but_for_who_is_tried(
        self, tmp_path: Path
    ) -> None:
        images, names = pictures(LESSON)
        order = np.random.default_rng(0).permutation(len(images))
        model = create(tmp_path / "model", penalty=0.1)
        model.learn([images[row] for row in order], [names[row] for row in order])
        asked, expected = pictures(dict.fromkeys((0, 1, 2, 4), 6), seed=5)
        found = [answer.top[0][0] for answer in model.predict(asked)]
        assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.8
        assert model.classes == sorted(set(names))

    def test_nothing_of_all_images_is_held_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dafuse.product.reading.SUMMED", 4)
        held = Counter[str]()

        def spied(name: str, size: Any) -> None:
            original = getattr(TaughtLift, name)

            def spy(self: TaughtLift, *args: Any) -> Any:
                held[name] = max(held[name], size(*args))
                return original(self, *args)

            monkeypatch.setattr(TaughtLift, name, spy)

        spied("collect", lambda feats_NF, labels_N: len(feats_NF))
        spied("learn", lambda lesson: len(lesson.feats_NF))
        spied("take_up", lambda sums, *_: sum(map(np.size, sums.values())))
        create(tmp_path / "model").learn(*pictures(LESSON))
        width = 24 * len(LESSON)
        assert held["collect"] == 4
        assert held["learn"] == 13
        assert held["take_up"] < 3 * 19 * width * 10  # of the classes of a shard, not of all

    def test_a_copy_in_another_shard_counts_once(self, tmp_path: Path) -> None:
        images, names = pictures({0: 15, 1: 15, 2: 15})
        copied = [*images, images[2], images[2], images[3]]
        model = create(tmp_path / "model")
        report = model.learn(copied, [*names, "class 0", "class 2", "class 2"])
        assert report.twice == 1
        assert [record.images for record in model.version.classes] == [15, 15, 15]
        assert report.skipped == [
            f"image {row}: the same image is in class 0, so it is not taught as class 2; keep it "
            "in one of them"
            for row in (46, 47)
        ]

    def test_a_class_without_an_image_left_is_no_class(self, tmp_path: Path) -> None:
        root = write_folders(tmp_path / "photos", {0: 12, 2: 14, 3: 9})
        for number in range(3):
            (root / "class 1").mkdir(exist_ok=True)
            (root / "class 1" / f"{number}.png").write_bytes(b"nothing")
        copy = next((root / "class 0").iterdir())
        (root / "class 4").mkdir()
        (root / "class 4" / "copy.png").write_bytes(copy.read_bytes())
        for number in range(2):
            (root / "class 3" / f"bad{number}.png").write_bytes(b"nothing")
        model = create(tmp_path / "model")
        report = model.learn(root)
        assert model.classes == ["class 0", "class 2", "class 3"]
        assert [record.images for record in model.version.classes] == [12, 14, 9]
        assert "class 1: none of its images can be read" in report.skipped
        assert len(report.skipped) == 7
        assert len(class_arrays(model)["class/counts"]) == 3
        asked, expected = pictures({0: 4, 2: 4, 3: 4}, seed=6)
        found = [answer.top[0][0] for answer in model.predict(asked)]
        assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.7

    def test_few_new_images_are_a_lesson_of_their_own(self, tmp_path: Path) -> None:
        """A folder that grew gives the very model that its new images alone would give."""
        images, names = pictures({0: 25, 1: 25})
        more, more_names = pictures({1: 4, 2: 4}, seed=4)
        grown = create(tmp_path / "grown")
        grown.learn(images, names)
        report = grown.learn([*images, *more], [*names, *more_names])
        assert (report.again, report.tested) == (50, 8)
        alone = create(tmp_path / "alone")
        alone.learn(images, names)
        alone.learn(more, more_names)
        assert [one.record for one in grown.version.classes] == [
            one.record for one in alone.version.classes
        ]
        assert grown.version.predict == alone.version.predict

    def test_progress_counts_images_and_shards(self, tmp_path: Path) -> None:
        notes: list[str] = []

        class Noting(Progress):
            def bar(self, label: str, total: int) -> Any:
                assert label == "solving" or total == 65
                return super().bar(label, total)

        original = Bar.advance

        def advance(self: Bar, steps: int = 1, note: str = "") -> None:
            notes.extend([note] * steps)
            original(self, steps, note)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bar, "advance", advance)
            create(tmp_path / "model").learn(*pictures(LESSON), progress=Noting())
        assert Counter(notes) == {
            f"shard {number} of 7": 5 if number == 7 else 10 for number in range(1, 8)
        }


def test_the_closed_forms_without_torch_take_shards(small_network: None, tmp_path: Path) -> None:
    models = {name: make(tmp_path / name, name) for name in SETTINGS}
    blank = {name: model.blank_method(model.version) for name, model in models.items()}
    taken = [name for name, method in blank.items() if isinstance(method, InShards)]
    assert taken == ["lift", "simplecil"] == LIGHT


def test_hashes_met_so_far_are_found_whatever_their_shard() -> None:
    met, rng = MetSoFar(), np.random.default_rng(0)
    hashes_N = rng.permutation(np.arange(2000, dtype=np.uint64) * np.uint64(7))
    for start in range(0, 2000, 130):
        part = slice(start, start + 130)
        met.add(hashes_N[part], np.arange(2000)[part])
    assert [met.find(hashes_N[row]) for row in (0, 131, 999, 1999)] == [0, 131, 999, 1999]
    assert met.find(np.uint64(3)) is None
    assert len(met.all(np.arange(2000)).hashes_N) == 2000
    assert len(met.runs) < 12


def test_an_image_that_is_written_as_a_file_is_read_in_its_shard(
    sharded: None, tmp_path: Path
) -> None:
    root = tmp_path / "photos"
    write_folders(root, {0: 12, 1: 12})
    Image.fromarray(pictures({0: 1}, seed=9)[0][0]).save(root / "class 1" / "x.png")
    assert sum(one.images for one in create(tmp_path / "model").learn(root).classes) == 25


@pytest.mark.parametrize("known", [0, 3, 6])
def test_many_classes_take_shards_too(
    sharded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The lesson makes it a model of many classes, at once or on its way, or it is one before."""
    monkeypatch.setattr("dafuse.heads.many.MANY_CLASSES", 5)
    monkeypatch.setattr("dafuse.taught.lift.MANY_CLASSES", 5)
    monkeypatch.setattr("dafuse.heads.many.MANY", 0)
    lesson = {0: 12, 1: 9, 2: 11, 3: 1, 4: 14, 5: 1, 6: 13, 7: 1}
    models = []
    for size in (1000, 10):
        set_size(monkeypatch, 1000)
        model = create(tmp_path / f"{size}", penalty=0.1)
        if known:
            model.learn(*pictures(dict.fromkeys(range(known), 8), seed=3))
        set_size(monkeypatch, size, 13)
        report = model.learn(*pictures(lesson, seed=1))
        assert sum(one.images for one in report.classes) == sum(lesson.values())
        assert model.version.derived
        models.append(model)
    counts = [[one.images for one in model.version.classes] for model in models]
    assert counts[0] == counts[1]
    asked, expected = pictures(dict.fromkeys((0, 1, 2, 4, 6), 6), seed=8)
    for model in models:
        found = [answer.top[0][0] for answer in model.predict(asked)]
        assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.75
    reopened = Classifier.open(tmp_path / "10", device="cpu")
    assert np.array_equal(reopened.probabilities(asked), models[1].probabilities(asked))
    reopened.learn(*pictures({1: 3, 8: 4}, seed=5))

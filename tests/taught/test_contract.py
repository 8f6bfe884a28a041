"""One suite for every method that can be taught: what the product relies on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from dafuse.data.glyphs import glyphs
from dafuse.engine.config import RunConfig
from dafuse.engine.run import run
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.product.objects import read_arrays
from dafuse.taught.contract import CLASS, PREDICT, SHARED
from dafuse.taught.table import METHODS, entry_of, find_taught
from helpers.product_models import files, pictures
from helpers.taught_methods import SETTINGS, TUNED, make

every_method = pytest.mark.parametrize("method", list(SETTINGS))
adds_up = pytest.mark.parametrize("method", ["lift", "simplecil", "layup", "klda", "anacp"])
KEEPS_RECORDS = ["lift", "simplecil"]  # of a class, whatever others there are
keeps_records = pytest.mark.parametrize("method", KEEPS_RECORDS)


def test_the_suite_has_every_method() -> None:
    assert {method.split()[0] for method in SETTINGS} == set(METHODS)


@every_method
def test_the_table_and_the_class_say_the_same(method: str) -> None:
    how = method.split()[0], SETTINGS[method]
    assert find_taught(*how).remains == entry_of(*how).words.remains
    assert find_taught(*how).needs_torch == entry_of(*how).needs_torch


TRAINING = {"epochs": 1, "lr": 0.02, "align_epochs": 2, "align_samples": 16}
IN_A_RUN: dict[str, dict[str, Any]] = {  # as settings, where the defaults of lessons are others
    **{method: options for method, options in SETTINGS.items() if options},
    "lift": {"keep": "classwise", "rank": 16},
    "lift tuned": {"keep": "classwise", "rank": 16, **TUNED},
    "lift tuned each": {"keep": "classwise", "rank": 16, **TUNED, "tune": "each"},
    "daf": TRAINING,
}
IN_LESSONS: dict[str, dict[str, Any]] = {
    **SETTINGS,
    "daf": {"memory_dtype": "float32", **TRAINING},
}
TRAINS = [method for method in SETTINGS if "tuned" in method or method in ("daf", "ranpac")]


@every_method
def test_lessons_give_what_a_benchmark_run_gives(tmp_path: Path, method: str) -> None:
    """The same images in two lessons and in two tasks: as many answers are right."""
    drawn = glyphs(train_per_class=6, test_per_class=4)
    for part, images in (("train", drawn.train), ("test", drawn.test)):
        for number, (pixels, label) in enumerate(zip(images.items, images.labels, strict=True)):
            if label < 4:
                for root in (tmp_path / "both" / part, tmp_path / f"{part}{label // 2}"):
                    folder = root / drawn.classes[label]
                    folder.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    out = tmp_path / "run"
    run(RunConfig(
        method={"name": method.split()[0], **IN_A_RUN.get(method, {})},
        data={"name": str(tmp_path / "both")},
        increment=2,
        order="natural",
        device="cpu",
        out=str(out),
    ))  # fmt: skip
    name = method.split()[0]
    classifier = Classifier.create(
        tmp_path / "model", method=name, device="cpu", **IN_LESSONS[method]
    )
    trains = {"train0": method in TRAINS, "train1": method in ("daf", "lift tuned each")}
    for lesson, holds_out in trains.items():
        options = {"holdout": 0} if holds_out or name == "anacp" else {}
        classifier.learn(tmp_path / lesson, **options)
    results = json.loads((out / "results.json").read_text())
    for task in range(2):
        right = 0
        for folder in sorted((tmp_path / f"test{task}").iterdir()):
            answers = classifier.predict(sorted(folder.iterdir()))
            right += sum(answer.top[0][0] == folder.name for answer in answers)
        assert right == results["correct"][-1][task]
    arrays = read_arrays(classifier.folder, classifier.version)
    (checkpoint,) = (out / "checkpoints").glob("*.safetensors")
    compared = kept_alike(arrays, load_file(checkpoint))
    assert ("modules" in compared) == (method in TRAINS)
    assert ("statistics" in compared) == (method not in ("lift", "simplecil"))  # other names


def kept_alike(arrays: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> set[str]:
    """Compare what a model and a run keep under the same names; which kinds that is."""
    compared = set()
    for name, expected in state.items():
        kind, _, rest = name.partition("/")
        if kind == "modules":
            found = arrays.get(SHARED + name)
        else:
            rest = rest.removeprefix("class.")  # as DAF calls it
            found = arrays.get(CLASS + rest, arrays.get(SHARED + rest))
        if kind == "classifier" or found is None:
            continue
        step = 1 if np.issubdtype(expected.dtype, np.integer) else 1e-3 * np.abs(expected).max()
        assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() <= step, name
        compared.add(kind)
    return compared


@pytest.mark.usefixtures("small_network")
class TestEveryMethod:
    @every_method
    def test_it_learns_more_and_new_and_forgets(self, tmp_path: Path, method: str) -> None:
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 12, 1: 12}))
        model.learn(*pictures({1: 12, 2: 12}, seed=1))
        assert [record.images for record in model.version.classes][1] > 12
        images, labels = pictures({0: 8, 1: 8, 2: 8}, seed=5)
        names = [found.top[0][0] for found in model.predict(images)]
        assert np.mean(np.array(names) == np.array(labels)) > 0.7
        before = model.probabilities(images)
        model.forget("class 1")
        assert model.classes == ["class 0", "class 2"]
        assert model.probabilities(images).shape == (24, 2)
        model.undo()
        assert np.array_equal(model.probabilities(images), before)

    @every_method
    def test_opened_again_it_answers_and_learns_alike(self, tmp_path: Path, method: str) -> None:
        one = make(tmp_path / "one", method)
        one.learn(*pictures({0: 6, 1: 6}))
        other = Classifier.open(tmp_path / "one", device="cpu")
        images, _ = pictures({0: 4, 1: 4}, seed=5)
        assert np.array_equal(one.probabilities(images), other.probabilities(images))
        other.learn(*pictures({2: 6, 3: 6}, seed=1))
        straight = make(tmp_path / "straight", method)
        straight.learn(*pictures({0: 6, 1: 6}))
        straight.learn(*pictures({2: 6, 3: 6}, seed=1))
        assert np.allclose(straight.probabilities(images), other.probabilities(images), atol=1e-6)

    @every_method
    def test_names_of_arrays_say_their_axis(self, tmp_path: Path, method: str) -> None:
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 6, 1: 6, 2: 6}))
        arrays = read_arrays(model.folder, model.version)
        for name, array in arrays.items():
            assert name.startswith((CLASS, SHARED, PREDICT))
            assert not name.startswith(CLASS) or len(array) == 3
        assert {"weights", "bias"} <= {name.removeprefix(PREDICT) for name in arrays}
        told = [one.what for entry in model.ledger().entries for one in entry.tensors]
        assert all(told)  # the ledger knows what each array is

    @every_method
    def test_what_was_read_stays_as_it_was(self, tmp_path: Path, method: str) -> None:
        """Lessons and drops change no array that an older version shares."""
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 6, 1: 6}))
        before = files(tmp_path / "model")
        model.learn(*pictures({1: 6, 2: 6}, seed=1))
        model.forget("class 0")
        model.undo()
        model.undo()
        assert files(tmp_path / "model") == before

    @adds_up
    def test_models_taught_apart_are_one(self, tmp_path: Path, method: str) -> None:
        """They share a class and have one each alone; joined, they equal a model taught all."""
        settings = dict(SETTINGS[method])
        if method in ("lift", "layup", "klda"):
            settings["penalty"] = 0.1  # else chosen by the images of each lesson
        lessons = [pictures({0: 9, 1: 6}), pictures({1: 5, 2: 7}, seed=1)]
        together = Classifier.create(tmp_path / "t", method=method, device="cpu", **settings)
        parts = []
        for number, lesson in enumerate(lessons):
            together.learn(*lesson)
            path = tmp_path / f"part {number}"
            parts.append(Classifier.create(path, method=method, device="cpu", **settings))
            parts[-1].learn(*lesson)
        before = [files(part.folder.path) for part in parts]
        merged = Classifier.merge([part.folder.path for part in parts], tmp_path / "merged")
        assert merged.classes == together.classes
        images, _ = pictures({0: 5, 1: 5, 2: 5}, seed=7)
        scores = [m.model.head.scores(m.features(images)) for m in (merged, together)]
        assert np.allclose(*scores, atol=0.01 * np.abs(scores[0]).max())
        assert [one.images for one in merged.version.classes] == [9, 11, 7]
        assert [files(part.folder.path) for part in parts] == before
        merged.learn(*pictures({5: 4}, seed=3))
        assert "merged part 0, part 1" in "\n".join(merged.info().lines())

    @keeps_records
    def test_models_of_different_classes_hand_on_their_records(
        self, tmp_path: Path, method: str
    ) -> None:
        parts = [make(tmp_path / name, method) for name in ("a", "b")]
        parts[0].learn(*pictures({0: 6, 1: 6}))
        parts[1].learn(*pictures({2: 6}))
        merged = Classifier.merge(parts, tmp_path / "merged")
        records = [one.record for part in parts for one in part.version.classes]
        assert [one.record for one in merged.version.classes] == records

    def test_what_cannot_be_merged_is_refused(self, tmp_path: Path) -> None:
        lift, other = make(tmp_path / "lift", "lift"), make(tmp_path / "other", "simplecil")
        daf, more = make(tmp_path / "daf", "daf"), make(tmp_path / "more", "daf")
        for model in (lift, other, daf, more):
            model.learn(*pictures({0: 3, 1: 3}))
        ranked = Classifier.create(tmp_path / "ranked", device="cpu", rank=3)
        ranked.learn(*pictures({0: 3, 1: 3}))
        for models, expected in (
            ([lift], "two models or more"),
            ([lift, other], "by other methods"),
            ([lift.folder.path, daf.folder.path], "by other methods"),
            ([lift, ranked], "different settings: rank"),
            ([lift, lift], "the same model"),
            ([daf, more], "cannot be merged: each has an adapter"),
        ):
            with pytest.raises(DafuseError, match=expected):
                Classifier.merge(models, tmp_path / "out")
            assert not (tmp_path / "out").exists()
        with pytest.raises(DafuseError, match="there is a model"):
            Classifier.merge([lift, ranked], tmp_path / "daf")

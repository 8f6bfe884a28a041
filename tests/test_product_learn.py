"""What a lesson does: as a benchmark's task, for one class, for known ones, for few images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from dafuse.data import batches
from dafuse.data.glyphs import glyphs
from dafuse.data.transforms import random_crops
from dafuse.engine.config import RunConfig
from dafuse.engine.run import run
from dafuse.errors import DafuseError
from dafuse.heads.alignment import align
from dafuse.heads.gaussians import ENOUGH
from dafuse.product.classifier import Classifier
from dafuse.product.reports import FEW, likely_share
from dafuse.product.state import read_state
from dafuse.progress import Progress
from product_models import create, files, pictures, taught, write_folders


def state(classifier: Classifier) -> dict[str, torch.Tensor]:
    return read_state(classifier.folder, classifier.version)


@pytest.fixture
def mirrored(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each epoch trained from now on, whether some image was mirrored."""
    found: list[bool] = []

    def watched(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, flips = random_crops(*given)
        found.append(bool(flips.any()))
        return boxes, flips

    monkeypatch.setattr(batches, "random_crops", watched)
    return found


def test_lessons_give_what_a_benchmark_run_gives(tmp_path: Path) -> None:
    """The same images in two lessons and in two tasks: the same tensors and answers."""
    drawn = glyphs(train_per_class=10, test_per_class=3)
    for part, images in (("train", drawn.train), ("test", drawn.test)):
        for number, (pixels, label) in enumerate(zip(images.items, images.labels, strict=True)):
            if label < 4:
                for root in (tmp_path / "both" / part, tmp_path / f"{part}{label // 2}"):
                    folder = root / drawn.classes[label]
                    folder.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    settings = {"epochs": 1, "lr": 0.02, "align_epochs": 2, "align_samples": 16}
    method = {"name": "daf", **settings}
    out = tmp_path / "run"
    data = {"name": str(tmp_path / "both")}
    run(RunConfig(
        method=method, data=data, increment=2, order="natural", device="cpu", out=str(out)
    ))  # fmt: skip
    expected = load_file(out / "checkpoints" / "task-0002.safetensors")

    classifier = Classifier.create(
        tmp_path / "model", device="cpu", memory_dtype="float32", **settings
    )
    for lesson in ("train0", "train1"):
        classifier.learn(tmp_path / lesson, holdout=0)
    found = state(classifier)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name

    results = json.loads((out / "results.json").read_text())
    for task in range(2):
        evaluation = classifier.evaluate(tmp_path / f"test{task}")
        right = sum(score.right for score in evaluation.classes)
        assert (right, evaluation.images) == (results["correct"][-1][task], 6)


@pytest.mark.usefixtures("small_network")
class TestLessons:
    def test_a_lesson_reports_what_it_did(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        first = classifier.learn(*pictures({0: 20, 1: 20}))
        assert [(one.name, one.images, one.held_out) for one in first.classes] == [
            ("class 0", 18, 2),
            ("class 1", 18, 2),
        ]
        assert first.held_out_accuracy is not None
        assert first.old_before is None
        second = classifier.learn(*pictures({1: 10, 2: 10}, seed=1))
        assert [one.name for one in second.new] == ["class 2"]
        assert [(one.name, one.images, one.known_from) for one in second.more] == [
            ("class 1", 9, 27)
        ]
        assert second.old_before is not None
        assert second.old_after is not None
        text = "\n".join(second.lines())
        assert "class 1: 9 more images, 27 in all" in text
        assert "estimated" in text
        assert classifier.classes == ["class 0", "class 1", "class 2"]
        assert [record.images for record in classifier.version.classes] == [18, 27, 9]
        assert classifier.version.classes[0].pixels == 18 * 24 * 24 * 3

    @pytest.mark.parametrize(("count", "held_out"), [(4, 0), (5, 1), (30, 3)])
    def test_what_is_held_out(self, tmp_path: Path, count: int, held_out: int) -> None:
        report = create(tmp_path / "model").learn(*pictures({0: count, 1: 9}))
        assert report.classes[0].held_out == held_out
        assert report.classes[0].images == count - held_out

    def test_nothing_is_held_out_where_asked(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        report = classifier.learn(*pictures({0: 9, 1: 9}), holdout=0)
        assert report.held_out_accuracy is None
        assert "no image was held out, so how well these classes do" in "\n".join(report.lines())
        assert classifier.version.calibration.images == 0
        with pytest.raises(DafuseError, match="holdout"):
            classifier.learn(*pictures({2: 9}), holdout=1)

    def test_mirrored_images_can_be_left_out(self, tmp_path: Path, mirrored: list[bool]) -> None:
        for flip in (True, False):
            mirrored.clear()
            create(tmp_path / str(flip)).learn(*pictures({0: 20, 1: 20}), flip=flip)
            assert mirrored
            assert any(mirrored) == flip

    def test_mirroring_is_remembered(self, tmp_path: Path, mirrored: list[bool]) -> None:
        def learn(*classes: int, **options: bool) -> bool:
            mirrored.clear()
            model.learn(*pictures(dict.fromkeys(classes, 20)), **options)
            assert mirrored
            return any(mirrored)

        model = create(tmp_path / "model")
        assert learn(0, 1)  # unless told, a first lesson is mirrored
        assert not learn(2, 3, flip=False)
        other = Classifier.open(tmp_path / "model", device="cpu")
        other.rename("class 0", "zero")
        assert not learn(4, 5)  # from the folder, whoever changed it since
        model.forget("class 2", "class 4", for_good=True)  # with the version of either lesson
        assert not learn(6, 7)
        assert model.version.step["flip"] is False
        assert learn(8, 9, flip=True)
        assert model.version.flip
        model.undo()
        assert not model.version.flip

    def test_more_of_a_class_is_as_if_it_were_learned_at_once(self, tmp_path: Path) -> None:
        """No adapter is trained on known classes, so only their statistics differ."""
        images, labels = pictures({0: 30, 1: 12, 2: 12})
        later = [i for i, name in enumerate(labels) if name == "class 0"][12:]
        now = [i for i in range(len(labels)) if i not in later]

        def pick(rows: list[int]) -> tuple[list[np.ndarray], list[str]]:
            return [images[i] for i in rows], [labels[i] for i in rows]

        taught_later = create(tmp_path / "later", memory_dtype="float32")
        taught_later.learn(*pick(now), holdout=0)
        adapter = taught_later.version.adapter
        taught_later.learn(*pick(later), holdout=0)
        assert taught_later.version.adapter == adapter
        assert taught_later.version.tasks == 1
        model = taught_later.model
        feats_ND = model.features([images[i] for i, name in enumerate(labels) if name == "class 0"])
        found = state(taught_later)
        mean_D = found["statistics/class.mean"][0]
        assert torch.allclose(mean_D, feats_ND.mean(0), atol=1e-4)
        width = len(mean_D)
        lower = torch.zeros(width, width)
        lower[tuple(torch.tril_indices(width, width))] = found["statistics/class.factor"][0]
        expected = torch.cov(feats_ND.T) + 1e-4 * torch.eye(width)
        assert torch.allclose(lower @ lower.T, expected, atol=1e-3)

    def test_one_class_at_a_time(self, tmp_path: Path) -> None:
        """From the very first: no adapter is trained, and yet they are told apart."""
        classifier = create(tmp_path / "model")
        for number in range(3):
            classifier.learn(*pictures({number: 12}, seed=number))
        assert classifier.version.tasks == 0
        images, labels = pictures({0: 8, 1: 8, 2: 8}, seed=50)
        names = [found.top[0][0] for found in classifier.predict(images)]
        assert np.mean(np.array(names) == np.array(labels)) > 0.8
        classifier.learn(*pictures({3: 12, 4: 12}, seed=4))  # the first adapter, beside a past
        assert classifier.version.tasks == 1
        images, labels = pictures(dict.fromkeys(range(5), 8), seed=51)
        names = [found.top[0][0] for found in classifier.predict(images)]
        assert np.mean(np.array(names) == np.array(labels)) > 0.7

    def test_one_image_a_class(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        report = classifier.learn(*pictures({0: 1, 1: 1, 2: 1}))
        for one, line in zip(report.few, report.lines()[-3:], strict=True):
            assert (one.left_out, one.found) == (0, 0)
            assert one.resembles in set(classifier.classes) - {one.name}
            assert line.endswith(f"cannot be tested; it looks most like {one.resembles}")
        report = classifier.learn(*pictures({3: 1}, seed=1))
        assert [one.name for one in report.few] == ["class 3"]
        assert FEW == ENOUGH  # the one says what the other does
        images, labels = pictures(dict.fromkeys(range(4), 6), seed=9)
        found = classifier.predict(images)
        assert np.mean([f.top[0][0] == name for f, name in zip(found, labels, strict=True)]) > 0.7
        assert np.mean([f.unknown for f in found]) < 0.5
        assert np.isfinite(classifier.probabilities(images)).all()

    def test_few_images_say_how_sure_they_are(self, tmp_path: Path) -> None:
        """Of one class all images are alike; those of the other are any class's."""
        classifier = create(tmp_path / "model")
        classifier.learn(*pictures({0: 12, 1: 12, 2: 12}))
        sure, names = pictures({3: 4}, seed=1)
        mixed, _ = pictures({0: 1, 1: 1, 2: 1}, seed=2)
        report = classifier.learn([*sure, *mixed], [*names, *["mixed"] * 3])
        found = {one.name: (one.left_out, one.found) for one in report.few}
        assert found == {"class 3": (4, 4), "mixed": (3, 0)}
        text = "\n".join(report.lines())
        low, high = likely_share(4, 4)
        assert (0.3 < low < 0.6, high) == (True, 1.0)
        assert (
            f"class 3 (4 images): 4 of 4 recognised when left out in turn; a rough guess for new "
            f"ones is {low:.0%} to 100%" in text
        )
        assert "mixed (3 images): 0 of 3 recognised" in text
        assert classifier.info().version.step["classes"][0]["found"] == 4
        more = classifier.learn(*pictures({3: 2}, seed=3))  # of these two alone it can be said
        assert [(one.known_from, one.left_out, one.found) for one in more.few] == [(6, 2, 2)]
        assert "class 3 (6 images): 2 of 2 of this lesson recognised" in "\n".join(more.lines())
        assert not classifier.learn(*pictures({3: 9}, seed=4)).few

    def test_ten_images_are_not_few_though_one_is_kept_back(self, tmp_path: Path) -> None:
        report = create(tmp_path / "model").learn(*pictures({0: 10, 1: 10, 2: 9}), holdout=0.1)
        assert [one.known_from for one in report.classes] == [9, 9, 8]
        assert [one.name for one in report.few] == ["class 2"]
        assert "class 2 (8 images, 1 kept back to test): " in "\n".join(report.lines())

    def test_many_classes_of_few_images_are_told_together(self, tmp_path: Path) -> None:
        report = create(tmp_path / "model").learn(*pictures(dict.fromkeys(range(10), 2)))
        found = sum(one.found for one in report.few)
        assert report.lines()[-1] == f"    and 2 more; of all {found} of 20 recognised"

    def test_classes_of_few_images_are_drawn_wider_and_of_many_as_they_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = []

        def watched(*given: Any, **options: Any) -> torch.Tensor:
            drawn.append(given[1])
            return align(*given, **options)

        monkeypatch.setattr("dafuse.methods.training.align", watched)
        classifier = create(tmp_path / "model", memory_dtype="float32")
        classifier.learn(*pictures({0: 12, 1: 12}), holdout=0)
        classifier.learn(*pictures({2: 1, 3: 4, 4: ENOUGH}, seed=1), holdout=0)
        spread_C = drawn[-1].covariance().diagonal(dim1=1, dim2=2).sum(1)
        kept = state(classifier)["statistics/class.factor"].square().sum(1)
        assert torch.allclose(spread_C[[0, 1, 4]], kept[[0, 1, 4]], rtol=1e-5)
        assert spread_C[2] > 20 * spread_C[[0, 1, 4]].max()  # deviations times 5
        assert 2 < spread_C[3] / kept[3] < spread_C[2] / kept[2]
        few = create(tmp_path / "few")
        few.learn(*pictures({0: 1, 1: 1}))
        few.learn(*pictures({2: 1, 3: 1}, seed=1))
        assert drawn[-1].covariance().std(0).max() < 1e-6  # none is wider than the others

    def test_a_model_of_one_image(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        report = classifier.learn(*pictures({0: 1}))
        assert "the only class" in report.lines()[-1]
        (found,) = classifier.predict(pictures({0: 1})[0])
        assert (found.name, found.probability, found.unknown) == ("class 0", 1.0, False)
        assert not classifier.predict(pictures({7: 1})[0])[0].unknown  # what is not like it?

    def test_alike_classes_are_named(self, tmp_path: Path) -> None:
        """The old class again, under a new name."""
        classifier = create(tmp_path / "model")
        classifier.learn(*pictures({0: 20, 1: 20, 2: 20}))
        images, _ = pictures({1: 40}, seed=5)
        report = classifier.learn(images, ["twin"] * len(images))
        assert ("twin", "class 1") in [(pair.new, pair.old) for pair in report.alike]
        assert all(pair.old == "class 1" for pair in report.alike)
        assert "alike: twin and class 1" in "\n".join(report.lines())

    def test_names_that_differ_only_in_case_are_refused(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        images, _ = pictures({0: 2})
        classifier.learn(images, ["Cat", "Cat"])
        before = files(tmp_path / "model")
        with pytest.raises(DafuseError, match="differ only in case"):
            classifier.learn(images, ["cat", "cat"])
        assert files(tmp_path / "model") == before

    def test_unreadable_images_are_skipped_and_named(self, tmp_path: Path) -> None:
        root = write_folders(tmp_path / "photos", {0: 4, 1: 4})
        (root / "class 0" / "broken.jpg").write_bytes(b"no image")
        report = create(tmp_path / "model").learn(root)
        assert [Path(line.partition(":")[0]).name for line in report.skipped] == ["broken.jpg"]
        for file in (root / "class 1").iterdir():
            file.write_bytes(b"no image")
        with pytest.raises(DafuseError, match="no readable training image: class 1"):
            create(tmp_path / "other").learn(root)

    def test_what_went_in_is_not_kept(self, tmp_path: Path) -> None:
        """No run of pixels of any image is in any file, and nothing else was written."""
        images, labels = pictures({0: 6, 1: 6})
        create(tmp_path / "model").learn(images, labels)
        kept = b"".join(files(tmp_path / "model").values())
        for pixels in images:
            assert pixels.tobytes()[:48] not in kept
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    @pytest.mark.parametrize("where", ["Trainer.fit", "put_state", "ModelFolder.publish"])
    def test_interrupted_it_leaves_the_model_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        classifier = taught(tmp_path / "model", {0: 6, 1: 6})
        answers = classifier.probabilities(pictures({0: 2})[0])

        def interrupt(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(f"dafuse.product.classifier.{where}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                classifier.learn(*pictures({2: 6, 3: 6}))
        assert classifier.classes == ["class 0", "class 1"]
        again = Classifier.open(tmp_path / "model", device="cpu")
        assert np.array_equal(again.probabilities(pictures({0: 2})[0]), answers)
        again.learn(*pictures({2: 6, 3: 6}))
        assert len(again.classes) == 4

    def test_two_objects_on_one_folder_build_on_each_other(self, tmp_path: Path) -> None:
        one, other = create(tmp_path / "model"), create(tmp_path / "model")
        one.learn(*pictures({0: 6, 1: 6}))
        other.learn(*pictures({2: 6, 3: 6}))
        assert other.classes == [f"class {i}" for i in range(4)]
        assert one.classes == ["class 0", "class 1"]
        one.follow()
        assert one.classes == other.classes
        other.rename("class 0", "zero")
        file = one.folder.version_file(3)
        file.rename(file.with_suffix(".away"))
        one.follow()  # cannot
        assert one.classes[0] == "class 0"
        file.with_suffix(".away").rename(file)
        one.follow()
        assert one.classes[0] == "zero"
        stranger = create(tmp_path / "stranger", adapter_rank=3)
        stranger.folder = one.folder
        with pytest.raises(DafuseError, match="another settings"):
            stranger.learn(*pictures({5: 6}))

    @pytest.mark.parametrize(
        ("images", "labels", "expected"),
        [
            ([np.zeros((8, 8, 3), np.uint8)], None, "need labels"),
            ([np.zeros((8, 8, 3), np.uint8)], ["a", "b"], "one label for each image"),
            ([], [], "one label for each image"),
            ([np.zeros((8, 8, 3), np.uint8)], [" "], "empty"),
            ([np.zeros((8, 8, 3))], ["a"], "uint8"),
            ([np.zeros((8, 8, 4), np.uint8)], ["a"], "shape"),
            ([b"no image"], ["a"], "image 0 cannot be read"),
            (["nope.jpg"], ["a"], r"image: a; .*nope\.jpg: there is no such file"),
            ([np.zeros((8, 8, 3), np.uint8)] * 6, "apples", "labels must be a list"),
            ([np.zeros((8, 8, 3), np.uint8)] * 2, ["a", None], "image 1 has no label"),
            ([np.zeros((8, 8, 3), np.uint8)] * 2, [float("nan"), "a"], "image 0 has no label"),
            ([np.zeros((8, 8, 3), np.uint8)], np.array([np.nan]), "image 0 has no label"),
            ("nowhere", None, "no folder nowhere"),
        ],
    )
    def test_bad_lessons(
        self, tmp_path: Path, images: object, labels: object, expected: str
    ) -> None:
        with pytest.raises(DafuseError, match=expected):
            create(tmp_path / "model").learn(images, labels)  # type: ignore[arg-type]
        assert not (tmp_path / "model").exists()

    def test_settings_are_checked_and_kept(self, tmp_path: Path) -> None:
        with pytest.raises(DafuseError, match="no option epoch"):
            Classifier.create(tmp_path / "model", epoch=3)
        with pytest.raises(DafuseError, match="stats_adapter"):
            taught(tmp_path / "model", {0: 2}, stats_adapter="task")
        with pytest.raises(DafuseError, match="head=aligned"):
            taught(tmp_path / "model", {0: 2}, head="lda")
        classifier = taught(tmp_path / "model", {0: 6, 1: 6}, adapter_rank=3)
        classifier.learn(*pictures({2: 6, 3: 6}), epochs=1)
        again = Classifier.open(tmp_path / "model", device="cpu")
        assert again.version.settings["adapter_rank"] == 3
        assert again.version.settings["epochs"] == 2
        assert again.version.step["epochs"] == 1

    def test_progress_is_shown(self, tmp_path: Path) -> None:
        labels: list[str] = []

        class Seen(Progress):
            def bar(self, label: str, total: int):  # type: ignore[no-untyped-def]
                labels.append(label)
                return super().bar(label, total)

        create(tmp_path / "model").learn(*pictures({0: 6, 1: 6}), progress=Seen())
        assert {"decode images", "train", "fisher", "statistics"} <= set(labels)

"""Lessons by the default method: what they do and say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.progress import Progress
from helpers.product_models import create, files, pictures, taught, write_folders


@pytest.mark.usefixtures("small_network")
class TestLessons:
    def test_a_lesson_reports_what_it_did(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        first = classifier.learn(*pictures({0: 20, 1: 20}))
        assert [(one.name, one.images, one.tested) for one in first.classes] == [
            ("class 0", 20, 20),
            ("class 1", 20, 20),
        ]
        assert first.accuracy is not None
        second = classifier.learn(*pictures({1: 10, 2: 10}, seed=1))
        assert [one.name for one in second.new] == ["class 2"]
        assert [(one.name, one.images, one.known_from) for one in second.more] == [
            ("class 1", 10, 30)
        ]
        text = "\n".join(second.lines())
        assert text.startswith("learned 1 new class and more of 1 class from 20 images in ")
        assert "class 1: 10 more images, 30 in all" in text
        assert "of 20 images right, each left out in turn" in text
        assert classifier.classes == ["class 0", "class 1", "class 2"]
        assert [record.images for record in classifier.version.classes] == [20, 30, 10]
        assert classifier.version.classes[0].pixels == 20 * 24 * 24 * 3

    def test_the_only_class_is_said_to_be_answered_always(self, tmp_path: Path) -> None:
        report = create(tmp_path / "model").learn(*pictures({0: 12}))
        assert "  the only class so far: every image is taken for it; teach another one" in (
            report.lines()
        )

    def test_a_sample_is_called_a_sample(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dafuse.heads.choice.TRIED_ON", 12)
        report = create(tmp_path / "model").learn(*pictures({0: 20, 1: 20}))
        assert "of a sample of 12 images right, each left out in turn" in "\n".join(report.lines())

    def test_few_images_say_how_sure_they_are(self, tmp_path: Path) -> None:
        """Images of one class are alike; those of the other are any class's."""
        classifier = create(tmp_path / "model")
        classifier.learn(*pictures({0: 12, 1: 12, 2: 12}))
        sure, names = pictures({3: 4}, seed=1)
        mixed, _ = pictures({0: 1, 1: 1, 2: 1}, seed=2)
        report = classifier.learn([*sure, *mixed], [*names, *["mixed"] * 3])
        found = {one.name: (one.tested, one.right) for one in report.few}
        assert found == {"class 3": (4, 4), "mixed": (3, 0)}
        text = "\n".join(report.lines())
        assert "class 3 (4 images): 4 of 4 recognised" in text
        assert "mixed (3 images): 0 of 3 recognised" in text
        assert not classifier.learn(*pictures({3: 9}, seed=4)).few

    def test_one_image_a_class(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        report = classifier.learn(*pictures({0: 1, 1: 1, 2: 1}))
        assert report.accuracy is None
        assert report.lines()[-1].endswith("class 2 (1 image): too few to test")
        images, labels = pictures(dict.fromkeys(range(3), 6), seed=9)
        found = classifier.predict(images)
        assert np.mean([f.top[0][0] == name for f, name in zip(found, labels, strict=True)]) > 0.7
        assert np.isfinite(classifier.probabilities(images)).all()

    def test_many_classes_of_few_images_are_counted(self, tmp_path: Path) -> None:
        report = create(tmp_path / "model").learn(*pictures(dict.fromkeys(range(10), 2)))
        assert "    and 2 more" in report.lines()

    def test_a_model_of_one_image(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model")
        report = classifier.learn(*pictures({0: 1}))
        assert report.accuracy is None
        (found,) = classifier.predict(pictures({0: 1})[0])
        assert (found.name, found.probability, found.unknown) == ("class 0", 1.0, False)
        assert not classifier.predict(pictures({7: 1})[0])[0].unknown  # what is not like it?

    def test_alike_classes_are_named(self, tmp_path: Path) -> None:
        """The old class again, under a new name."""
        classifier = create(tmp_path / "model")
        classifier.learn(*pictures({0: 20, 1: 20, 2: 20}))
        images, _ = pictures({1: 40}, seed=5)
        report = classifier.learn(images, ["twin"] * len(images))
        assert ("twin", "class 1") in [(pair.name, pair.other) for pair in report.alike]
        assert "of twin was taken for class 1" in "\n".join(report.lines())

    def test_the_order_of_lessons_does_not_matter(self, tmp_path: Path) -> None:
        """Records are the same at a fixed penalty, whatever came before them."""
        lessons = [pictures({0: 9, 1: 5}), pictures({2: 7}, seed=1), pictures({3: 3}, seed=2)]
        found = []
        for order in ((0, 1, 2), (2, 0, 1)):
            model = create(tmp_path / str(order), penalty=0.1)
            for number in order:
                model.learn(*lessons[number])
            scores = model.model.head.scores(model.features(lessons[0][0])).T
            by_name = dict(zip(model.classes, scores, strict=True))
            found.append(np.array([by_name[f"class {number}"] for number in range(4)]))
        assert np.allclose(found[0], found[1], atol=1e-3)

    def test_options_of_training_are_refused_where_nothing_is_trained(self, tmp_path: Path) -> None:
        with pytest.raises(DafuseError, match="epochs: only for methods that train, and lift"):
            create(tmp_path / "model").learn(*pictures({0: 2}), epochs=3)
        with pytest.raises(DafuseError, match="no option adapter_rank; it has features, head"):
            create(tmp_path / "model", adapter_rank=3)
        with pytest.raises(DafuseError, match="rank must be at least 1 and at most 1000, not 0"):
            create(tmp_path / "model", rank=0)
        for name, said in (("rank", "a whole number"), ("penalty", "a number or null")):
            with pytest.raises(DafuseError, match=f"{name} must be {said}, not True"):
                create(tmp_path / "model", **{name: True})
        with pytest.raises(DafuseError, match="no method that can be taught is called 'lft'"):
            create(tmp_path / "model", method="lft")

    @pytest.mark.parametrize("seed", [-1, 2**32, 2**63, 1.5, True, "one"])
    def test_a_seed_that_no_model_can_have_is_refused(self, tmp_path: Path, seed: Any) -> None:
        with pytest.raises(DafuseError, match=r"seed must be .*, not "):
            create(tmp_path / "model", seed=seed)
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize("seed", [0, 2**32 - 1])
    def test_a_model_of_any_seed_can_be_opened(self, tmp_path: Path, seed: int) -> None:
        create(tmp_path / "model", seed=seed).learn(*pictures({0: 3, 1: 3}))
        assert Classifier.open(tmp_path / "model").version.seed == seed

    def test_progress_is_shown(self, tmp_path: Path) -> None:
        labels: list[str] = []

        class Seen(Progress):
            def bar(self, label: str, total: int):  # type: ignore[no-untyped-def]
                labels.append(label)
                return super().bar(label, total)

        create(tmp_path / "model").learn(*pictures({0: 6, 1: 6}), progress=Seen())
        assert "features" in labels

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
        report = create(tmp_path / "other").learn(root)
        assert [one.name for one in report.classes] == ["class 0"]
        assert "class 1: none of its images can be read" in report.skipped
        for file in (root / "class 0").iterdir():
            file.write_bytes(b"no image")
        with pytest.raises(DafuseError, match="none of the images can be read"):
            create(tmp_path / "third").learn(root)

    def test_what_went_in_is_not_kept(self, tmp_path: Path) -> None:
        """No run of pixels of any image is in any file, and nothing else was written."""
        images, labels = pictures({0: 6, 1: 6})
        create(tmp_path / "model").learn(images, labels)
        kept = b"".join(files(tmp_path / "model").values())
        for pixels in images:
            assert pixels.tobytes()[:48] not in kept
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    @pytest.mark.parametrize(
        "where", ["lesson.teach", "lesson.put_arrays", "folder.ModelFolder.publish"]
    )
    def test_interrupted_it_leaves_the_model_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        classifier = taught(tmp_path / "model", {0: 6, 1: 6})
        answers = classifier.probabilities(pictures({0: 2})[0])

        def interrupt(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(f"dafuse.product.{where}", interrupt)
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
        stranger = create(tmp_path / "stranger", rank=3)
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
            (
                ["nope.jpg"],
                ["a"],
                r"can be read: .*nope\.jpg: there is no such file",
            ),
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


def test_a_lesson_whose_model_could_not_predict_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path / "model", {0: 3, 1: 3})

    def fail(*_: object) -> None:
        raise RuntimeError("nothing can be computed")

    monkeypatch.setattr("dafuse.product.classifier.Predictor", fail)
    with pytest.raises(RuntimeError):
        model.learn(*pictures({2: 3}))
    monkeypatch.undo()
    again = Classifier.open(tmp_path / "model", device="cpu")
    assert (again.version.number, again.classes) == (1, ["class 0", "class 1"])

"""Lessons by DAF: it trains, holds images out, and keeps Gaussians."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dafuse.data import batches
from dafuse.data.transforms import random_crops
from dafuse.errors import DafuseError
from dafuse.heads.alignment import align
from dafuse.heads.gaussians import ENOUGH
from dafuse.product.classifier import Classifier
from dafuse.product.objects import read_arrays
from dafuse.progress import Progress
from helpers.places import OLD_MODEL
from helpers.processes import clean_environment, dafuse_without
from helpers.product_models import QUICK, create, pictures, taught


def state(classifier: Classifier) -> dict[str, torch.Tensor]:
    arrays = read_arrays(classifier.folder, classifier.version)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.fixture
def mirrored(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each epoch trained from now on whether some image was mirrored."""
    found: list[bool] = []

    def watched(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, flips = random_crops(*given)
        found.append(bool(flips.any()))
        return boxes, flips

    monkeypatch.setattr(batches, "random_crops", watched)
    return found


@pytest.mark.usefixtures("small_network")
class TestLessons:
    @pytest.mark.parametrize(("count", "held_out"), [(4, 0), (5, 1), (30, 3)])
    def test_what_is_held_out(self, tmp_path: Path, count: int, held_out: int) -> None:
        report = create(tmp_path / "model", **QUICK).learn(*pictures({0: count, 1: 9}))
        assert report.classes[0].tested == held_out

    def test_nothing_is_held_out_where_asked(self, tmp_path: Path) -> None:
        classifier = create(tmp_path / "model", **QUICK)
        report = classifier.learn(*pictures({0: 9, 1: 9}), holdout=0)
        assert report.accuracy is None
        assert "no image could be tested, so how well these classes do" in "\n".join(report.lines())
        assert classifier.version.numbers["held_out"] == 0
        with pytest.raises(DafuseError, match="holdout"):
            classifier.learn(*pictures({2: 9}), holdout=1)

    def test_mirrored_images_can_be_left_out(self, tmp_path: Path, mirrored: list[bool]) -> None:
        for flip in (True, False):
            mirrored.clear()
            create(tmp_path / f"{flip}", **QUICK).learn(*pictures({0: 20, 1: 20}), flip=flip)
            assert mirrored
            assert any(mirrored) == flip

    def test_mirroring_is_remembered(self, tmp_path: Path, mirrored: list[bool]) -> None:
        def learn(*classes: int, **options: bool) -> bool:
            mirrored.clear()
            model.learn(*pictures(dict.fromkeys(classes, 20)), **options)
            assert mirrored
            return any(mirrored)

        model = create(tmp_path / "model", **QUICK)
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

        taught_later = create(tmp_path / "later", **QUICK, memory_dtype="float32")
        taught_later.learn(*pick(now), holdout=0)
        adapter = taught_later.version.shared
        taught_later.learn(*pick(later), holdout=0)
        assert taught_later.version.shared == adapter
        assert taught_later.version.numbers["tasks"] == 1
        model = taught_later.model
        own = [images[i] for i, name in enumerate(labels) if name == "class 0"]
        feats_ND = torch.from_numpy(model.features(own))
        found = state(taught_later)
        mean_D = found["class/mean"][0]
        assert torch.allclose(mean_D, feats_ND.mean(0), atol=1e-4)
        width = len(mean_D)
        lower = torch.zeros(width, width)
        lower[tuple(torch.tril_indices(width, width))] = found["class/factor"][0]
        expected = torch.cov(feats_ND.T) + 1e-4 * torch.eye(width)
        assert torch.allclose(lower @ lower.T, expected, atol=1e-3)

    def test_one_class_at_a_time(self, tmp_path: Path) -> None:
        """No adapter is trained from the very first on, and yet they are told apart."""
        classifier = create(tmp_path / "model", **QUICK)
        for number in range(3):
            classifier.learn(*pictures({number: 12}, seed=number))
        assert classifier.version.numbers["tasks"] == 0
        images, labels = pictures({0: 8, 1: 8, 2: 8}, seed=50)
        names = [found.top[0][0] for found in classifier.predict(images)]
        assert np.mean(np.array(names) == np.array(labels)) > 0.8
        classifier.learn(*pictures({3: 12, 4: 12}, seed=4))  # the first adapter, beside a past
        assert classifier.version.numbers["tasks"] == 1
        images, labels = pictures(dict.fromkeys(range(5), 8), seed=51)
        names = [found.top[0][0] for found in classifier.predict(images)]
        assert np.mean(np.array(names) == np.array(labels)) > 0.7

    def test_classes_of_few_images_are_drawn_wider_and_of_many_as_they_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = []

        def watched(*given: Any, **options: Any) -> torch.Tensor:
            drawn.append(given[1])
            return align(*given, **options)

        monkeypatch.setattr("dafuse.methods.training.align", watched)
        classifier = create(tmp_path / "model", **QUICK, memory_dtype="float32")
        classifier.learn(*pictures({0: 12, 1: 12}), holdout=0)
        classifier.learn(*pictures({2: 1, 3: 4, 4: ENOUGH}, seed=1), holdout=0)
        spread_C = drawn[-1].covariance().diagonal(dim1=1, dim2=2).sum(1)
        kept = state(classifier)["class/factor"].square().sum(1)
        assert torch.allclose(spread_C[[0, 1, 4]], kept[[0, 1, 4]], rtol=1e-5)
        assert spread_C[2] > 20 * spread_C[[0, 1, 4]].max()  # deviations times 5
        assert 2 < spread_C[3] / kept[3] < spread_C[2] / kept[2]
        few = create(tmp_path / "few", **QUICK)
        few.learn(*pictures({0: 1, 1: 1}))
        few.learn(*pictures({2: 1, 3: 1}, seed=1))
        assert drawn[-1].covariance().std(0).max() < 1e-6  # none is wider than the others

    def test_settings_are_checked_and_kept(self, tmp_path: Path) -> None:
        with pytest.raises(DafuseError, match="no option epoch"):
            Classifier.create(tmp_path / "model", **QUICK, epoch=3)
        with pytest.raises(DafuseError, match="stats_adapter"):
            taught(tmp_path / "model", {0: 2}, stats_adapter="task", **QUICK)
        with pytest.raises(DafuseError, match="head=aligned"):
            taught(tmp_path / "model", {0: 2}, head="lda", **QUICK)
        classifier = taught(tmp_path / "model", {0: 6, 1: 6}, adapter_rank=3, **QUICK)
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

        create(tmp_path / "model", **QUICK).learn(*pictures({0: 6, 1: 6}), progress=Seen())
        assert {"reading", "train", "fisher", "statistics"} <= set(labels)


def test_the_ledger_needs_no_torch() -> None:
    """It reads words, as `info` does."""
    done = subprocess.run(
        [*dafuse_without("torch", "timm"), "ledger", str(OLD_MODEL)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the global adapter, which predicts; one for all classes" in done.stdout


def test_a_model_of_format_1_takes_every_step(tmp_path: Path) -> None:
    """Rename, forget, export and more of a known class, and back to what it was."""
    shutil.copytree(OLD_MODEL, tmp_path / "model")
    model = Classifier.open(tmp_path / "model", device="cpu")
    image = OLD_MODEL.with_name("model-v1-image.png")
    before = model.predict(image, top=3)
    assert model.export(tmp_path / "old.onnx").difference.largest < 1e-4
    model.rename("upper A", "A")
    model.learn([image] * 2, ["digit 8"] * 2)
    assert [one.name for one in model.version.classes] == ["A", "upper W", "digit 8"]
    assert model.forget("upper W").names == ["upper W"]
    assert model.probabilities(image).shape == (1, 2)
    assert model.export(tmp_path / "new.onnx").card.classes == ["A", "digit 8"]
    for _ in range(3):
        model.undo()
    assert model.predict(image, top=3) == before
    model.undo()  # a lesson that was taught by the old dafuse
    assert model.version.number == 1
    model.forget(model.classes[0], for_good=True)
    with pytest.raises(DafuseError, match="nothing to undo"):
        model.undo()

"""Answers: every kind of input, calibrated probabilities, the unknown, evaluation, an old model."""

import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dafuse.errors import DafuseError
from dafuse.heads.confidence import calibration_error
from dafuse.product.classifier import Classifier
from dafuse.product.version import OF_FEW
from dafuse.progress import Progress
from dafuse.taught.daf_calibration import PRIOR_SHARPNESS, Calibration, with_held_out
from helpers.places import OLD_MODEL
from helpers.product_models import create, pictures, taught, write_folders


def test_every_kind_of_input_gives_the_same_answer(tmp_path: Path, small_network: None) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6, 2: 6})
    (pixels, *_), _ = pictures({1: 1}, seed=3)
    file = tmp_path / "image.png"
    Image.fromarray(pixels).save(file)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    rgba = Image.fromarray(pixels).convert("RGBA")
    one = [str(file), file, Image.fromarray(pixels), rgba, pixels, stream.getvalue(), pixels[None]]
    expected = classifier.predict(pixels, top=3)
    assert expected[0].top[0] == (expected[0].name, expected[0].probability)
    assert math.isclose(sum(share for _, share in expected[0].top), 1, abs_tol=1e-5)
    for image in one:
        assert classifier.predict(image, top=3) == expected
    both = classifier.predict([file, np.asarray(Image.fromarray(pixels).convert("L"))], top=2)
    assert dict(both[0].top) == pytest.approx(dict(expected[0].top[:2]), abs=1e-5)
    assert len(both) == 2
    assert classifier.predict([]) == []
    assert classifier.probabilities([]).shape == (0, 3)
    by_column = dict(zip(classifier.classes, classifier.probabilities(file)[0], strict=True))
    assert dict(expected[0].top) == pytest.approx(by_column)


def test_an_answer_does_not_depend_on_the_other_images(tmp_path: Path, small_network: None) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6, 2: 6})
    images, _ = pictures({0: 40, 1: 30}, seed=3)
    images.append(np.zeros((50, 31, 3), np.uint8))  # another size
    alone = np.concatenate([classifier.probabilities(image) for image in images])
    assert np.allclose(classifier.probabilities(images), alone, atol=1e-5)


def test_what_cannot_be_predicted_is_said(tmp_path: Path, small_network: None) -> None:
    classifier = create(tmp_path / "model")
    with pytest.raises(DafuseError, match="learned nothing yet"):
        classifier.predict(np.zeros((8, 8, 3), np.uint8))
    classifier.learn(*pictures({0: 6, 1: 6}))
    (tmp_path / "text.jpg").write_text("no image")
    good = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(DafuseError, match=r"text\.jpg cannot be read"):
        classifier.predict([good, tmp_path / "text.jpg"])
    with pytest.raises(DafuseError, match="image 1 cannot be read"):
        classifier.probabilities([good, good.astype(float)])
    with pytest.raises(DafuseError, match="top must be at least 1, not 0"):
        classifier.predict(good, top=0)
    answers = list(classifier.answers([tmp_path / "text.jpg", good]))
    assert str(answers[0]) == "not an image that Pillow knows"
    assert answers[1] == classifier.predict(good)[0]


def test_images_unlike_every_class_are_unknown(tmp_path: Path, small_network: None) -> None:
    classifier = taught(tmp_path / "model", {0: 30, 1: 30, 2: 30})
    known = classifier.predict(pictures({0: 30, 1: 30, 2: 30}, seed=8)[0])
    assert np.mean([found.unknown for found in known]) < 0.2
    black_and_white = np.indices((24, 24)).sum(0) % 2 * 255
    strange = np.repeat(black_and_white[..., None], 3, axis=2).astype(np.uint8)
    (found,) = classifier.predict(strange)
    assert found.unknown
    assert found.name == "unknown"
    assert found.familiarity < classifier.model.threshold
    (forced,) = classifier.predict(strange, threshold=-math.inf)
    assert (forced.unknown, forced.name) == (False, found.top[0][0])
    assert classifier.predict(pictures({0: 1}, seed=8)[0], threshold=math.inf)[0].unknown


def logits_of(sharpness: float, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose labels are drawn with probabilities softmax(sharpness * logits)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(count, 5, generator=generator)
    labels = torch.multinomial((sharpness * logits).softmax(1), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 2.0])
def test_calibration_finds_the_sharpness_and_lowers_the_loss(sharpness: float) -> None:
    known = with_held_out(Calibration(), *logits_of(sharpness, 3000))
    assert known.sharpness == pytest.approx(sharpness, rel=0.1)
    logits, labels = logits_of(sharpness, 3000, seed=1)  # others than those it was found with
    before = F.cross_entropy(logits, labels)
    after = F.cross_entropy(known.sharpness * logits, labels)
    assert after <= before + (1e-3 if sharpness == 1 else -0.01)


def test_calibration_adds_up_over_lessons() -> None:
    logits, labels = logits_of(0.5, 600)
    at_once = with_held_out(Calibration(), logits, labels)
    known = Calibration()
    for start in range(0, 600, 20):
        known = with_held_out(known, logits[start : start + 20], labels[start : start + 20])
    assert known.images == at_once.images == 600
    assert known.sharpness == pytest.approx(at_once.sharpness, rel=0.1)


def test_a_few_lucky_images_do_not_make_it_sure() -> None:
    logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]] * 2)
    known = with_held_out(Calibration(), logits, torch.tensor([0, 1] * 2))
    assert PRIOR_SHARPNESS <= known.sharpness < 1.1


def test_calibration_error_by_hand() -> None:
    assert calibration_error(np.array([0.9, 0.9, 0.1]), np.array([1, 0, 0])) == pytest.approx(
        (2 * 0.4 + 0.1) / 3
    )
    assert calibration_error(np.ones(4), np.ones(4)) == 0
    assert math.isnan(calibration_error(np.zeros(0), np.zeros(0)))


def test_evaluation_counts(tmp_path: Path, small_network: None) -> None:
    classifier = taught(tmp_path / "model", {0: 12, 1: 12, 2: 12})
    root = write_folders(tmp_path / "photos", {0: 5, 1: 5, 3: 4}, seed=6)
    (root / "class 1" / "broken.png").write_bytes(b"")
    evaluation = classifier.evaluate(root)
    assert [(score.name, score.images) for score in evaluation.classes] == [
        ("class 0", 5),
        ("class 1", 5),
    ]
    assert [(score.name, score.images) for score in evaluation.untaught] == [("class 3", 4)]
    assert len(evaluation.skipped) == 1
    by_hand, nearest, refused = [], [], []
    for score in evaluation.classes:
        paths = sorted((root / score.name).glob("0*.png"))
        answers = classifier.predict(paths)
        right = [found.name == score.name for found in answers]
        by_hand += right
        nearest += [found.top[0][0] == score.name for found in answers]
        refused += [found.unknown for found in answers]
        assert score.right == sum(right)
    assert evaluation.accuracy == np.mean(by_hand)
    assert evaluation.accuracy_without_unknown == np.mean(nearest)
    assert evaluation.unknown == np.mean(refused)
    assert sum(count for *_, count in evaluation.confused) == 10 - sum(by_hand) - sum(refused)
    assert [one.right for one in evaluation.answered if one.name != "class 3"] == by_hand
    text = "\n".join(evaluation.lines())
    assert "of 10 images of 2 classes right" in text
    assert "calibration error" in text
    assert "class 3" in text


def test_evaluation_knows_a_class_in_any_spelling(tmp_path: Path, small_network: None) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    classifier.rename("class 0", "caf\u00e9")
    root = write_folders(tmp_path / "photos", {0: 3, 1: 3})
    (root / "class 0").rename(root / "Cafe\u0301")
    (root / "class 1").rename(root / "CLASS 1")
    evaluation = classifier.evaluate(root)
    assert {(one.name, one.images) for one in evaluation.classes} == {
        ("caf\u00e9", 3),
        ("class 1", 3),
    }
    assert evaluation.untaught == []
    assert sum(one.right for one in evaluation.classes) > 0


def test_evaluation_takes_the_test_part_as_it_is(tmp_path: Path, small_network: None) -> None:
    """It has a class that train/ has not, and class folders without images."""
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    root = tmp_path / "photos"
    write_folders(root / "train", {0: 4})
    write_folders(root / "test", {0: 2, 1: 3})
    for part in ("train", "test"):
        (root / part / "hollow").mkdir()
    said: list[str] = []

    class Heard(Progress):
        def say(self, line: str) -> None:
            said.append(line)

    evaluation = classifier.evaluate(root, Heard())
    assert [(one.name, one.images) for one in evaluation.classes] == [
        ("class 0", 2),
        ("class 1", 3),
    ]
    assert evaluation.untaught == []
    assert said == ["skipped hollow: no images in this class folder"]
    (tmp_path / "empty" / "hollow").mkdir(parents=True)
    with pytest.raises(DafuseError, match="no image in the class folders"):
        classifier.evaluate(tmp_path / "empty")


def test_a_model_of_format_1_still_answers_as_it_did() -> None:
    """Made once and never again: what it says must not change."""
    expected = json.loads((OLD_MODEL.parent / "model-v1-answers.json").read_text())
    classifier = Classifier.open(OLD_MODEL, device="cpu")
    assert classifier.classes == expected["classes"]
    image = OLD_MODEL.parent / "model-v1-image.png"
    (found,) = classifier.predict(image, top=3)
    assert found.name == expected["name"]
    assert not found.unknown
    assert found.familiarity == pytest.approx(expected["familiarity"], abs=1e-3)
    assert dict(found.top) == pytest.approx(expected["probabilities"], abs=1e-3)
    assert len(classifier.info().steps) == 2
    assert classifier.ledger().bytes < 400_000


def test_a_model_of_format_1_learns_on(tmp_path: Path) -> None:
    """It writes the new format; undo goes back to the old one."""
    shutil.copytree(OLD_MODEL, tmp_path / "model")
    classifier = Classifier.open(tmp_path / "model", device="cpu")
    image = OLD_MODEL.parent / "model-v1-image.png"
    before = classifier.predict(image, top=3)
    classifier.learn(*pictures({5: 3}))
    assert classifier.classes == ["upper A", "upper W", "digit 8", "class 5"]
    written = json.loads((tmp_path / "model" / "versions" / "0003.json").read_text())
    assert written["format"] == OF_FEW
    assert [step["version"] for step in classifier.info().steps] == [1, 2, 3]
    classifier.forget("upper A")
    classifier.undo()
    classifier.undo()
    assert classifier.predict(image, top=3) == before

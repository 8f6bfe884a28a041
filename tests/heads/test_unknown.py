"""Unknown images: their familiarity, and the threshold below which they are refused."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

from dafuse.cli import main
from dafuse.data.own_data import images_to_test
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.confidence import LEAST_TESTED, REFUSED, Threshold
from dafuse.heads.familiarity import BACKGROUND, FAR, Familiarity
from dafuse.heads.head import NEVER, Head
from dafuse.heads.sums import classwise
from dafuse.product.classifier import Classifier
from dafuse.product.evaluation import Evaluation, evaluate
from dafuse.progress import Progress
from helpers.photographs import photographs
from helpers.product_models import pictures, write_folders

WIDTH, TOKEN = 24, slice(8, 16)


def closed_form(**options: object) -> ClosedForm:
    like = np.zeros(0, np.float32)
    settings = {"kinds": ("ridge",), "penalty": 0.1, "precision": "float64", **options}
    sums = classwise(WIDTH, 64, like)
    return ClosedForm(lambda x: x, sums, like=like, last_token=TOKEN, **settings)  # type: ignore[arg-type]


class World:
    """Classes about random means far from zero: tokens of a network have nearly one length."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.means = 10 + self.rng.normal(size=(40, WIDTH))
        self.stds = self.rng.uniform(0.3, 1.5, WIDTH)

    def images(self, classes: range, each: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.array(classes), each)
        noise = self.stds * self.rng.normal(size=(len(labels), WIDTH))
        return (self.means[labels] + noise).astype(np.float32), labels


def familiarity(solved: ClosedForm, feats: np.ndarray) -> np.ndarray:
    assert solved.familiarity is not None
    return solved.familiarity(solved.scores(feats), feats)


def test_likeness_is_the_relative_distance_to_the_nearest_class() -> None:
    """The scores give what both distances through the whole scatter matrices give."""
    world = World()
    feats, labels = world.images(range(6), 10)
    solved = closed_form()
    solved.learn(feats, labels)
    means = np.stack([feats[labels == k].mean(0) for k in range(6)]).astype(np.float64)
    apart = feats - means[labels]
    centred = means - means.mean(0)
    within = apart.T @ apart
    total = within + 10 * centred.T @ centred
    penalty = 0.1 * np.trace(total) / WIDTH * np.eye(WIDTH)
    to_classes, to_all = np.linalg.inv(within + penalty), np.linalg.inv(total + penalty)

    def expected(images: np.ndarray) -> np.ndarray:
        x = images[:, None] - means
        nearest = np.einsum("nkd,de,nke->nk", x, to_classes, x).min(1)
        y = images - means.mean(0)
        beyond = np.einsum("nd,de,ne->n", y, to_classes, y)
        background = beyond - np.einsum("nd,de,ne->n", y, to_all, y)
        return beyond - nearest - BACKGROUND * background

    new = world.images(range(12), 5)[0].astype(np.float64)
    assert solved.familiarity is not None
    found = solved.familiarity.likeness(solved.scores(new))
    wanted = expected(new) / expected(means).mean()
    assert np.allclose(found, wanted, rtol=5e-3, atol=5e-3)  # half precision


def test_distance_is_that_of_the_last_token_in_units_of_its_covariance() -> None:
    world = World()
    feats, labels = world.images(range(6), 200)
    solved = closed_form()
    solved.learn(feats, labels)
    token = feats[:, TOKEN].astype(np.float64)
    y = token - token.mean(0)
    covariance = y.T @ y / len(y)
    shrink = (0.1 + 0.5 * 8 / 1200) * np.trace(covariance) / 8
    wanted = np.einsum("nd,de,ne->n", y, np.linalg.inv(covariance + shrink * np.eye(8)), y)
    assert solved.familiarity is not None
    found = solved.familiarity.distance(feats)
    assert np.allclose(found, wanted, rtol=0.01)
    ratios = solved.familiarity.farness(feats, found)
    squares = (token**2).sum(1)
    assert np.allclose(ratios, FAR * (found / found.mean()) / (squares / squares.mean()), rtol=0.05)


@pytest.mark.parametrize("kinds", [("ridge",), ("lda",)])
def test_the_share_that_is_refused_is_true_of_other_images(kinds: tuple[str, ...]) -> None:
    """It holds after several lessons for all classes; classes never taught are refused more often.

    It is a mean over worlds: in one of them, the classes of the last lessons may differ from most.
    """
    refused = []
    for seed in range(6):
        world, solved = World(seed), closed_form(kinds=kinds)
        for start in range(0, 20, 4):
            solved.learn(*world.images(range(start, start + 4), 40))
        tested = [world.images(classes, 100)[0] for classes in (range(20), range(20, 40))]
        refused.append([
            float((familiarity(solved, feats) < solved.threshold.value).mean()) for feats in tested
        ])  # fmt: skip
    known, others = np.mean(refused, 0)
    assert known == pytest.approx(REFUSED, abs=0.02)
    assert others > 0.2


def test_thresholds_are_a_mean_over_lessons_that_fades() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=400), 3 + rng.normal(size=400)
    first = Threshold().after(one, 5)
    assert first.value == pytest.approx(np.quantile(one, REFUSED), abs=0.1)
    second = first.after(two, 5)
    newest = Threshold().after(two, 5).value
    assert second.value == pytest.approx((first.value + newest) / 2)
    assert newest > first.after(two, 10).value > second.value  # more classes: it has moved since
    few = np.zeros(LEAST_TESTED - 1)
    assert Threshold().after(few, 5).value == NEVER
    assert first.after(few, 6) == first
    for joined in (Threshold().joined(first), first.joined(Threshold())):
        assert joined.value == pytest.approx(first.value)
    assert Threshold().joined(Threshold()).value == NEVER


def test_nothing_is_refused_where_nothing_can_be_known() -> None:
    """One class, one image a class, or the same image again and again."""
    world = World()
    for feats, labels in (
        world.images(range(1), 10),
        world.images(range(5), 1),
        (np.ones((12, WIDTH), np.float32), np.repeat([0, 1], 6)),
    ):
        solved = closed_form()
        solved.learn(feats, labels)
        found = familiarity(solved, feats)
        assert np.isfinite(found).all()
        assert (found >= solved.threshold.value).all()


def test_it_rests_as_plain_arrays() -> None:
    world = World()
    solved = closed_form()
    solved.learn(*world.images(range(5), 10))
    made = solved.familiarity
    assert made is not None
    again = Familiarity.from_arrays(made.arrays(), made.numbers())
    feats = world.images(range(8), 3)[0]
    scores = solved.scores(feats)
    assert np.array_equal(again(scores, feats), made(scores, feats))
    with pytest.raises(ValueError, match="fit together"):
        Familiarity.from_arrays({**made.arrays(), "own": made.own_C[:3]}, made.numbers())
    three = Head(np.ones((3, WIDTH), np.float32), np.zeros(3, np.float32), likeness=made)
    with pytest.raises(ValueError, match="other classes"):
        Head.from_arrays(three.arrays(), three.numbers())


@pytest.mark.usefixtures("small_network")
class TestTaught:
    def test_forgetting_and_merging_keep_answers(self, tmp_path: Path) -> None:
        one = Classifier.create(tmp_path / "one", device="cpu")
        one.learn(*pictures({0: 15, 1: 15, 2: 15}))
        other = Classifier.create(tmp_path / "other", device="cpu")
        other.learn(*pictures({3: 15, 4: 15}))
        merged = Classifier.merge([one, other], tmp_path / "merged")
        merged.forget("class 1")
        images, _ = pictures({0: 20, 2: 20, 3: 20, 4: 20}, seed=7)
        answers = merged.predict(images)
        assert merged.model.threshold > NEVER
        assert np.mean([found.unknown for found in answers]) < 0.25
        opened = Classifier.open(merged.folder.path, device="cpu")
        assert [found.familiarity for found in opened.predict(images)] == pytest.approx(
            [found.familiarity for found in answers], abs=1e-5
        )

    def test_the_exported_file_knows_it_too(self, tmp_path: Path) -> None:
        model = Classifier.create(tmp_path / "model", device="cpu")
        model.learn(*pictures({0: 12, 1: 12, 2: 12}))
        for options in ([], ["--int8"]):
            main(["export", str(tmp_path / "model"), str(tmp_path / "model.onnx"), *options])
        main(["export", str(tmp_path / "model"), str(tmp_path / "model.onnx")])
        session = InferenceSession(tmp_path / "model.onnx")
        cut = model.model.preprocessing.centre_square
        images = photographs() + pictures({0: 4, 1: 4}, seed=3)[0]
        pixels = np.stack([cut(image) for image in images])
        (found,) = session.run(["familiarity"], {"pixels": pixels})
        expected = model.model.head.answers(model.model.encode(pixels)).familiarity_N
        assert np.ptp(expected) > 1
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_evaluate_counts_unknown_as_wrong(self, tmp_path: Path) -> None:
        """The same images twice, under a threshold that refuses half of them."""
        model = Classifier.create(tmp_path / "model", device="cpu")
        model.learn(*pictures({0: 12, 1: 12}))
        root = write_folders(tmp_path / "photos", {0: 6, 1: 6}, seed=6)
        dataset = images_to_test(root)
        familiar = [found.familiarity for found in model.predict(list(dataset.train.items))]
        threshold = float(np.median(familiar))

        def tested(threshold: float) -> Evaluation:
            def answers(images: Sequence[Path | np.ndarray]) -> Iterable[Any]:
                return model.answers(images, threshold=threshold)

            return evaluate(model.classes, answers, dataset, Progress())

        all_known, half = tested(-np.inf), tested(threshold)
        assert all_known.accuracy == all_known.accuracy_without_unknown > 0.8
        assert half.accuracy_without_unknown == all_known.accuracy
        assert half.unknown == 0.5
        assert half.accuracy <= 0.5
        assert "50.0% answered unknown, which counts as wrong" in half.lines()[0]
        assert [one.unknown for one in half.answered] == [one < threshold for one in familiar]

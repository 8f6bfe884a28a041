"""The scikit-learn estimator: scikit-learn's own checks, and what they cannot ask about images."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from dafuse import Classifier, DafuseClassifier
from dafuse.errors import DafuseError
from helpers.product_models import QUICK, pictures, write_folders

pytestmark = pytest.mark.usefixtures("small_network")
FEW: dict[str, Any] = {
    "device": "cpu",
    "method": "daf",
    "options": {name: value for name, value in QUICK.items() if name != "method"},
}
COLUMNS: dict[str, Any] = {"image_shape": (-1, 1), "pixel_range": (-5, 5)}


# scikit-learn's checks are about rows of numbers: here each row is drawn as a column of pixels.
# None is expected to fail.
@parametrize_with_checks(
    [DafuseClassifier(**COLUMNS), DafuseClassifier(**FEW, **COLUMNS, epochs=5)]
)
def test_scikit_learns_own_checks(
    estimator: DafuseClassifier, check: Callable[[DafuseClassifier], None]
) -> None:
    check(estimator)


def test_scikit_learn_knows_that_its_checks_do_not_apply_to_images() -> None:
    assert not get_tags(DafuseClassifier()).input_tags.two_d_array
    with pytest.warns(match="Can't test estimator DafuseClassifier"):
        check_estimator(DafuseClassifier(**FEW))


def fitted(counts: dict[int, int] | None = None, **options: Any) -> DafuseClassifier:
    return DafuseClassifier(**FEW, **options).fit(*pictures(counts or {0: 8, 1: 8, 2: 8}))


def test_every_kind_of_image_gives_the_same_model(tmp_path: Path) -> None:
    arrays, labels = pictures({0: 6, 1: 6})
    paths = sorted(write_folders(tmp_path, {0: 6, 1: 6}).glob("*/*.png"))
    kinds = [
        arrays,
        np.stack(arrays),
        paths,
        np.array([str(path) for path in paths]),
        [Image.fromarray(pixels) for pixels in arrays],
    ]
    expected = fitted({0: 6, 1: 6}).predict_proba(arrays)
    assert expected.shape == (12, 2)
    for images in kinds:
        estimator = DafuseClassifier(**FEW).fit(images, labels)
        assert np.array_equal(estimator.predict_proba(images), expected)
        assert not hasattr(estimator, "n_features_in_")
    scaled = DafuseClassifier(**FEW, pixel_range=(0, 1)).fit(np.stack(arrays) / 255, labels)
    assert np.array_equal(scaled.predict_proba([pixels / 255 for pixels in arrays]), expected)


def test_it_learns_images_and_answers_with_their_labels() -> None:
    estimator = fitted({0: 20, 1: 20, 2: 20})
    images, labels = pictures({0: 10, 1: 10, 2: 10}, seed=5)
    assert estimator.score(images, labels) > 0.8
    assert estimator.predict(images).tolist() == [
        found.top[0][0] for found in estimator.classifier_.predict(images)
    ]


@pytest.mark.parametrize("method", ["lift", "simplecil"])
def test_methods_that_train_nothing_learn_too(method: str) -> None:
    estimator = DafuseClassifier(method=method, options={"features": "last"})
    if method == "simplecil":
        estimator.set_params(options=None)
    estimator.fit(*pictures({0: 20, 1: 20}))
    estimator.partial_fit(*pictures({2: 20}, seed=1))
    images, labels = pictures({0: 10, 1: 10, 2: 10}, seed=5)
    assert estimator.score(images, labels) > 0.8
    assert estimator.classifier_.version.method == method
    with pytest.raises(DafuseError, match=f"{method} has no option epochs"):
        estimator.set_params(epochs=3).fit(images, labels)
    with pytest.raises(DafuseError, match="epochs: only for methods that train"):
        estimator.partial_fit(images, labels)
    assert len(estimator.classes_) == 3  # still the model that it was


def test_partial_fit_accepts_unseen_labels_at_any_call() -> None:
    estimator = DafuseClassifier(**FEW)
    numbered = {"class 5": 50, "class 1": 10, "class 3": 30, "class 0": -1}
    for counts in ({5: 6, 1: 6}, {3: 5}, {1: 4, 0: 6}):  # two new, one new, one known and one new
        images, names = pictures(counts, seed=sum(counts))
        assert estimator.partial_fit(images, [numbered[name] for name in names]) is estimator
    assert estimator.classes_.tolist() == [-1, 10, 30, 50]
    images, names = pictures({5: 5, 1: 5, 3: 5, 0: 5}, seed=9)
    probabilities = estimator.predict_proba(images)
    assert probabilities.sum(1) == pytest.approx(np.ones(20), abs=1e-5)
    assert set(estimator.predict(images).tolist()) <= {-1, 10, 30, 50}
    assert estimator.score(images, [numbered[name] for name in names]) > 0.6
    assert estimator.fit(*pictures({0: 5, 1: 5})).classes_.tolist() == ["class 0", "class 1"]


def test_labels_may_be_announced() -> None:
    images, labels = pictures({0: 5, 1: 5})
    announced = ["class 2", "class 0", "class 1"]
    estimator = DafuseClassifier(**FEW).partial_fit(images, labels, classes=announced)
    assert estimator.classes_.tolist() == sorted(announced)
    assert (estimator.predict_proba(images)[:, 2] == 0).all()
    estimator.partial_fit(*pictures({2: 5}))
    assert estimator.predict_proba(images)[:, 2].all()


def test_many_lessons_take_no_more_room_than_one() -> None:
    estimator, counts = DafuseClassifier(**FEW), []
    for seed in range(4):
        estimator.partial_fit(*pictures({0: 4, 1: 4}, seed))
        counts.append(len([p for p in estimator.classifier_.folder.path.rglob("*") if p.is_file()]))
    assert len(set(counts)) == 1


def test_copies_pickles_and_folders_answer_the_same(tmp_path: Path) -> None:
    estimator = fitted()
    images, _ = pictures({0: 3, 1: 3}, seed=4)
    expected = estimator.predict_proba(images)
    copies = [pickle.loads(pickle.dumps(estimator)), deepcopy(estimator)]
    estimator.save(tmp_path / "model")
    with pytest.raises(DafuseError, match=r"there is a model .* already: choose another path"):
        estimator.save(tmp_path / "model")
    del estimator  # and its temporary folder
    for copy in copies:
        assert np.array_equal(copy.predict_proba(images), expected)
        copy.partial_fit(*pictures({5: 4}))
        assert len(copy.classes_) == 4
        assert not hasattr(clone(copy), "classes_")
    opened = Classifier.open(tmp_path / "model", device="cpu")
    assert np.array_equal(opened.probabilities(images), expected)
    unfitted = pickle.loads(pickle.dumps(DafuseClassifier(epochs=3)))
    assert unfitted.get_params()["epochs"] == 3


def test_it_works_inside_scikit_learn(tmp_path: Path) -> None:
    paths = sorted(write_folders(tmp_path, {0: 8, 1: 8}).glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    assert cross_val_score(DafuseClassifier(**FEW), paths, labels, cv=2).shape == (2,)
    search = GridSearchCV(DafuseClassifier(**FEW), {"epochs": [1, 3]}, cv=2).fit(paths, labels)
    assert search.best_estimator_.classifier_.version.settings["epochs"] in (1, 3)


def test_rows_of_numbers_are_images_of_the_shape_that_is_said() -> None:
    rows, labels = load_digits(n_class=3, return_X_y=True)
    digits = DafuseClassifier(**FEW, image_shape=(8, 8), pixel_range=(0, 16))
    digits.fit(rows[:120], labels[:120])
    assert digits.n_features_in_ == 64
    images = np.rint(rows.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    same = DafuseClassifier(**FEW).fit(images[:120], labels[:120])
    assert np.array_equal(digits.predict_proba(rows[120:]), same.predict_proba(images[120:]))


@pytest.mark.parametrize(
    ("images", "labels", "expected"),
    [
        (np.zeros((4, 48), np.uint8), list("aabb"), r"not \[4, 48\]; .* image_shape"),
        (np.zeros((4, 8, 8, 3)), list("aabb"), "uint8 .* pixel_range"),
        (np.full((4, 8, 8, 3), np.nan), list("aabb"), "contains NaN"),
        (np.zeros((4, 8, 8, 3), np.uint8), list("aab"), "inconsistent numbers of samples"),
        (np.zeros((4, 8, 8, 3), np.uint8), None, "requires y"),
        (np.zeros((4, 8, 8, 3), np.uint8), ["a", None, "b", "b"], "have no label"),
        (np.zeros((4, 8, 8, 3), np.uint8), ["a", float("nan"), "b", "b"], "have no label"),
        (np.zeros((4, 8, 8, 3), np.uint8), [0.1, 0.2, 0.3, 0.4], "Unknown label type"),
    ],
)
def test_bad_input_is_said_and_leaves_the_model_as_it_was(
    images: np.ndarray, labels: list[Any] | None, expected: str
) -> None:
    estimator = fitted()
    with pytest.raises(ValueError, match=expected):
        estimator.fit(images, labels)
    assert len(estimator.predict(pictures({0: 2})[0])) == 2


def test_parameters_count_when_they_are_set() -> None:
    estimator = fitted().set_params(epochs=3, lr=0.5)
    estimator.partial_fit(*pictures({3: 4, 4: 4}))
    step = estimator.classifier_.version.step
    assert (step["epochs"], step["lr"]) == (3, 0.5)
    estimator.set_params(epochs=0)
    with pytest.raises(DafuseError, match="epochs must be at least 1"):
        estimator.partial_fit(*pictures({5: 4, 6: 4}))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_whole_numbers_of_any_width_are_of_one_kind(dtype: type) -> None:
    images, _ = pictures({0: 4, 1: 4})
    estimator = DafuseClassifier(**FEW).fit(images, np.repeat([-1, 7], 4))
    estimator.partial_fit(*pictures({2: 3})[:1], np.array([7, 7, 200], dtype))
    assert estimator.classes_.tolist() == [-1, 7, 200]
    assert estimator.classes_.dtype == np.int64
    assert estimator.classifier_.classes == ["-1", "7", "200"]


def test_the_seed_may_be_drawn() -> None:
    seeds = [
        fitted({0: 2, 1: 2}, random_state=np.random.RandomState(number)).classifier_.version.seed
        for number in (0, 0, 1)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    assert fitted({0: 2, 1: 2}, random_state=np.int64(5)).classifier_.version.seed == 5
    assert isinstance(fitted({0: 2, 1: 2}, random_state=None).classifier_.version.seed, int)
    with pytest.raises(ValueError, match="cannot be used to seed"):
        fitted(random_state="seven")


def test_labels_stay_of_one_kind_and_unfitted_is_said() -> None:
    with pytest.raises(ValueError, match="labels must stay what they were"):
        fitted().partial_fit(pictures({0: 2})[0], [1, 2])
    estimator = fitted()
    with pytest.raises(DafuseError, match="differ only in case"):
        estimator.fit(pictures({0: 4})[0], ["a", "A", "a", "A"])
    assert set(estimator.predict(pictures({0: 2})[0])) <= {"class 0", "class 1", "class 2"}
    with pytest.raises(NotFittedError):
        DafuseClassifier().predict(pictures({0: 2})[0])

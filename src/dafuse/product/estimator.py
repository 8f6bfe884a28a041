"""The classifier as a scikit-learn estimator: images in, labels out, new labels at any time.

from dafuse import DafuseClassifier

pets = DafuseClassifier()
pets.fit(paths, labels)                      # or Pillow images, or uint8 arrays [N, H, W, 3]
pets.partial_fit(more_paths, more_labels)    # labels never seen before are welcome
print(pets.score(test_paths, test_labels))
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from dafuse.backbones.registry import COMPACT
from dafuse.data.class_names import composed
from dafuse.data.images import AnyImage
from dafuse.data.own_data import is_missing
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.taught.table import DEFAULT

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_array,
        check_consistent_length,
        check_is_fitted,
        validate_data,
    )
except ImportError:
    raise DafuseError("scikit-learn is not installed: pip install 'dafuse[sklearn]'") from None

Labels = Sequence[Any] | np.ndarray


class DafuseClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of images for scikit-learn.

    X is a sequence of paths, Pillow images or arrays, or an array [N, H, W, 3] or [N, H, W].
    It keeps its model in a temporary folder, as `classifier_`; `save` copies it. A pickle holds
    the model but not the backbone's weights, which must be found where it is opened. Labels that
    differ only in case are refused, as class names are. `predict` always names a class;
    `classifier_.predict` may answer "unknown".

    Args:
        backbone: the frozen network, as `Classifier.create` takes it; the default is inside the
            package
        method: how it is taught: lift, simplecil, or daf, which trains and needs torch
        weights: a local .safetensors file with the backbone's weights
        device: auto, cpu, cuda or mps
        epochs: number of epochs of each fit, of a method that trains; default: the method's
        lr: learning rate of a method that trains; default: the method's
        holdout: share of each class of 5 images or more that a method that trains holds out to
            calibrate with; default: 0.1
        image_shape: X is a table with a row of numbers for each image, of this shape as in numpy's
            reshape: (8, 8), (32, 32, 3)
        pixel_range: black and white in arrays that are not uint8: (0, 1), (0, 16)
        random_state: seed of everything random, or a RandomState (None: numpy's) to draw it from
        options: other settings of the method, as `Classifier.create` takes them
    """

    classes_: np.ndarray
    classifier_: Classifier
    _folder: TemporaryDirectory[str]

    def __init__(
        self,
        backbone: str = COMPACT,
        *,
        method: str = DEFAULT,
        weights: str | None = None,
        device: str = "auto",
        epochs: int | None = None,
        lr: float | None = None,
        holdout: float | None = None,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        random_state: int | np.random.RandomState | None = 1993,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.backbone, self.method, self.weights, self.device = backbone, method, weights, device
        self.epochs, self.lr, self.holdout = epochs, lr, holdout
        self.image_shape, self.pixel_range = image_shape, pixel_range
        self.random_state, self.options = random_state, options

    def fit(self, X: Any, y: Labels) -> Self:
        """Learn these images and nothing else."""
        return self._learn(X, y, None, reset=True)

    def partial_fit(self, X: Any, y: Labels, classes: Labels | None = None) -> Self:
        """Learn these images, too: of new labels, and more of known ones.

        ``classes`` may announce labels that are still to come; it never has to.
        """
        return self._learn(X, y, classes, reset=not hasattr(self, "classifier_"))

    def predict(self, X: Any) -> np.ndarray:
        probabilities_NC = self.predict_proba(X)
        return self.classes_[probabilities_NC.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities, columns as `classes_`; 0 for classes only announced."""
        check_is_fitted(self, "classifier_")
        found_NK = self.classifier_.probabilities(self._images(X, reset=False))
        names = _names(self.classes_)
        probabilities_NC = np.zeros((len(found_NK), len(names)), found_NK.dtype)
        probabilities_NC[:, [names.index(name) for name in self.classifier_.classes]] = found_NK
        return probabilities_NC

    def save(self, path: str | Path) -> None:
        """Keep the model as a folder, for `dafuse predict` and `Classifier.open`."""
        check_is_fitted(self, "classifier_")
        if ModelFolder(path).exists():
            raise DafuseError(f"there is a model {path} already: choose another path")
        ModelFolder(path).require_claimable()
        shutil.copytree(self._folder.name, Path(path).expanduser(), dirs_exist_ok=True)

    def _learn(self, X: Any, y: Labels, classes: Labels | None, reset: bool) -> Self:
        images = self._images(X, reset)
        objects = isinstance(y, list | tuple) or (isinstance(y, np.ndarray) and y.dtype.kind == "O")
        if objects and any(map(is_missing, y)):  # numpy would make names of them
            raise ValueError("some images have no label: None or NaN stands for none")
        labels_N = _labels(validate_data(self, y=y))
        check_consistent_length(images, labels_N)
        known = [] if reset else [self.classes_]
        coming = [] if classes is None else [_labels(classes)]
        all_labels = _all_labels([*known, labels_N, *coming])
        folder, classifier = self._create() if reset else (self._folder, self.classifier_)
        classifier.learn(
            images,
            _names(labels_N),
            recognise=False,  # as scikit-learn has it: all images count, however often
            holdout=self.holdout,
            epochs=self.epochs,
            lr=self.lr,
        )
        # what undo would need goes, and the history: many calls take no more room than one
        version = classifier.version
        classifier.folder.publish(replace(version, parent=None, history=version.history[-1:]))
        self._folder, self.classifier_ = folder, classifier
        self.classes_ = all_labels
        return self

    def _create(self) -> tuple[TemporaryDirectory[str], Classifier]:
        own = {"epochs": self.epochs, "lr": self.lr}
        chosen = {name: value for name, value in own.items() if value is not None}
        folder = TemporaryDirectory(prefix="dafuse-")
        classifier = Classifier.create(
            folder.name,
            self.backbone,
            method=self.method,
            weights=self.weights,
            device=self.device,
            seed=self._seed(),
            **{**(self.options or {}), **chosen},
        )
        return folder, classifier

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _images(self, X: Any, reset: bool) -> list[AnyImage]:
        if self.image_shape is not None:
            rows_NF = validate_data(self, X, reset=reset)
            return list(self._pixels(rows_NF.reshape(len(rows_NF), *self.image_shape)))
        if isinstance(X, np.ndarray) and X.dtype.kind in "buif":
            if X.ndim not in (3, 4):
                raise ValueError(
                    f"X must be images [N, H, W, 3] or [N, H, W], not {list(X.shape)}; "
                    "for rows of numbers say their image_shape"
                )
            return list(self._pixels(check_array(X, ensure_2d=False, allow_nd=True)))
        return [self._pixels(one) if isinstance(one, np.ndarray) else one for one in X]

    def _pixels(self, values: np.ndarray) -> np.ndarray:
        """Return pixels as uint8."""
        if values.dtype == np.uint8 and self.pixel_range is None:
            return values
        if self.pixel_range is None:
            raise ValueError(
                f"pixels must be uint8 (0 to 255), not {values.dtype}; "
                "for others say their pixel_range, such as (0, 1)"
            )
        black, white = self.pixel_range
        scaled = (values.astype(np.float64) - black) * (255 / (white - black))
        return np.rint(scaled).clip(0, 255).astype(np.uint8)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.input_tags.three_d_array = self.image_shape is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The temporary folder travels as its files."""
        state = dict(super().__getstate__())
        if state.pop("classifier_", None) is not None:
            top = Path(state.pop("_folder").name)
            files = [file for file in top.rglob("*") if file.is_file()]
            named = {file.relative_to(top).as_posix(): file for file in files}
            state["_files"] = {name: file.read_bytes() for name, file in named.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.get("_files")
        super().__setstate__({name: value for name, value in state.items() if name != "_files"})
        if files is None:
            return
        self._folder = TemporaryDirectory(prefix="dafuse-")
        for name, data in files.items():
            path = Path(self._folder.name, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        self.classifier_ = Classifier.open(
            self._folder.name, weights=self.weights, device=self.device
        )


def _labels(labels: Labels) -> np.ndarray:
    """Whole numbers or names, never objects."""
    check_classification_targets(labels)
    array = np.asarray(labels)
    return array.astype(str) if array.dtype.kind == "O" else array


def _all_labels(parts: list[np.ndarray]) -> np.ndarray:
    """Each of them once, in order."""
    kinds = {part.dtype.kind for part in parts}
    if kinds == {"i", "u"}:  # numpy would make floats of both of 64 bits
        parts = [part.astype(np.int64) for part in parts]
    elif len(kinds) > 1:
        raise ValueError("labels must stay what they were: whole numbers, or names")
    labels = np.unique(np.concatenate(parts))
    if len(set(_names(labels))) < len(labels):
        raise ValueError("some labels are the same but for how accents are encoded: use one")
    return labels


def _names(labels: np.ndarray) -> list[str]:
    """Return labels as the model keeps them."""
    return [composed(str(label)) for label in labels.tolist()]

"""The usual classifiers on a network's features: LDA, logistic and ridge regression.

Each takes features [N, D] and labels [N] and returns a function that predicts labels; None if it is
not defined. Penalties are chosen by cross-validation if images can be held out, which takes two
images of each class.
"""

from collections.abc import Callable

import numpy as np

from dafuse.errors import DafuseError

FOLDS = 5  # max number of folds, which need as many images of each class
INVERSE_PENALTIES = tuple(10.0**power for power in range(-4, 2))  # C of logistic regression
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-6, 13))  # of ridge regression
ITERATIONS = 1000
MANY = 2000  # images from which on a process for each fold pays

Predict = Callable[[np.ndarray], np.ndarray]


def require_sklearn() -> None:
    """Refuse before long work if scikit-learn is missing."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise DafuseError("scikit-learn is not installed: pip install 'dafuse[sklearn]'") from None


def lda(feats_ND: np.ndarray, labels_N: np.ndarray) -> Predict | None:
    """Fit LDA with one covariance for all classes, shrunk after Ledoit and Wolf.

    scikit-learn's own LDA shrinks each class separately, which fails with few images. Undefined for
    one image of each class.
    """
    from sklearn.covariance import ledoit_wolf

    if _least(labels_N) < 2:
        return None
    means_CD = np.stack([feats_ND[labels_N == c].mean(0) for c in range(labels_N.max() + 1)])
    within_DD, _ = ledoit_wolf(feats_ND - means_CD[labels_N], assume_centered=True)
    weights_DC = np.linalg.lstsq(within_DD, means_CD.T)[0]
    bias_C = -(means_CD.T * weights_DC).sum(0) / 2
    return lambda others_ND: (others_ND @ weights_DC + bias_C).argmax(1)


def logistic(feats_ND: np.ndarray, labels_N: np.ndarray) -> Predict:
    """Fit logistic regression, its penalty cross-validated if every class has two images."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    model = LogisticRegression(max_iter=ITERATIONS)
    if _least(labels_N) < 2:
        return model.fit(feats_ND, labels_N).predict
    folds = StratifiedKFold(min(FOLDS, _least(labels_N)), shuffle=True, random_state=0)
    tried = {"C": INVERSE_PENALTIES}
    processes = -1 if len(labels_N) >= MANY else None
    search = GridSearchCV(model, tried, cv=folds, n_jobs=processes)
    return search.fit(feats_ND, labels_N).predict


def ridge(feats_ND: np.ndarray, labels_N: np.ndarray) -> Predict:
    """Fit ridge regression, its penalty by leave-one-out, as in `RidgeClassifierCV`."""
    from sklearn.linear_model import RidgeClassifierCV

    return RidgeClassifierCV(alphas=PENALTIES).fit(feats_ND, labels_N).predict


COMMON: dict[str, Callable[[np.ndarray, np.ndarray], Predict | None]] = {
    "LDA": lda,
    "logistic regression": logistic,
    "ridge regression": ridge,
}


def _least(labels_N: np.ndarray) -> int:
    """Return the number of images of the smallest class."""
    return int(np.bincount(labels_N).min())

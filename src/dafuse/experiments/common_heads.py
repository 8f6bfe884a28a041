"""What anybody would fit to a network's features: LDA, logistic and ridge regression.

Each takes features [N, D] and labels [N] and gives a function that predicts labels of others; none
where it is not defined. Penalties are chosen by cross-validation where there is something to hold
out, which takes two images of each class.
"""

from collections.abc import Callable

import numpy as np

from dafuse.errors import DafuseError

FOLDS = 5  # at most: as many as a class has images
INVERSE_PENALTIES = tuple(10.0**power for power in range(-4, 2))  # C of logistic regression
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-6, 13))  # of ridge regression
ITERATIONS = 1000
MANY = 2000  # images from which folds are worth a process each

Predict = Callable[[np.ndarray], np.ndarray]


def require_sklearn() -> None:
    """Say so before long work where scikit-learn is missing."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise DafuseError("scikit-learn is not installed: pip install 'dafuse[sklearn]'") from None


def lda(feats_ND: np.ndarray, labels_N: np.ndarray) -> Predict | None:
    """With one covariance for all classes, shrunk after Ledoit and Wolf.

    That of scikit-learn's own LDA is shrunk for each class alone, which few images do not bear.
    Undefined for one image of each class.
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
    """Its penalty cross-validated; scikit-learn's default where a class has a single image."""
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
    """Its penalty by leave-one-out, as `RidgeClassifierCV` does it."""
    from sklearn.linear_model import RidgeClassifierCV

    return RidgeClassifierCV(alphas=PENALTIES).fit(feats_ND, labels_N).predict


COMMON: dict[str, Callable[[np.ndarray, np.ndarray], Predict | None]] = {
    "LDA": lda,
    "logistic regression": logistic,
    "ridge regression": ridge,
}


def _least(labels_N: np.ndarray) -> int:
    """Images of the class that has the fewest."""
    return int(np.bincount(labels_N).min())

"""dafuse: an image classifier that keeps learning new classes and keeps no old images."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier as Classifier
    from dafuse.product.estimator import DafuseClassifier as DafuseClassifier

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`from dafuse import Classifier` imports numpy and Pillow; `import dafuse` nothing."""
    if name == "Classifier":
        from dafuse.product.classifier import Classifier

        return Classifier
    if name == "DafuseClassifier":  # imports scikit-learn, too
        from dafuse.product.estimator import DafuseClassifier

        return DafuseClassifier
    raise AttributeError(f"module 'dafuse' has no attribute {name!r}")

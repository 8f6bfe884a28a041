"""dafuse: an image classifier that keeps learning new classes and keeps no old images."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier as Classifier

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`from dafuse import Classifier` imports torch; `import dafuse` does not."""
    if name == "Classifier":
        from dafuse.product.classifier import Classifier

        return Classifier
    raise AttributeError(f"module 'dafuse' has no attribute {name!r}")

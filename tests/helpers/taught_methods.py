"""Every method that can be taught, with settings that make its lessons short."""

from pathlib import Path
from typing import Any

from dafuse.product.classifier import Classifier
from helpers.product_models import QUICK

SHORT = {"epochs": 2, "batch_size": 8, "adapter_rank": 4}
TUNED = {"tune": "first", **SHORT}
SETTINGS: dict[str, dict[str, Any]] = {  # of a method, or of one of its kinds: "layup tuned"
    "lift": {},
    "simplecil": {},
    "daf": QUICK,
    "ranpac": {"projection": 60, **SHORT},
    "layup": {"blocks": 2},
    "klda": {"width": 200},
    "anacp": {"width": 60, "penalty": 1.0},
    "lift tuned": TUNED,
    "lift tuned each": {**TUNED, "tune": "each"},
    "layup tuned": {"blocks": 2, **TUNED},
    "anacp tuned": {"width": 60, "penalty": 1.0, **TUNED},
}


def make(path: Path, method: str, **more: Any) -> Classifier:
    given = {"method": method.split()[0], **SETTINGS[method], **more}
    return Classifier.create(path, device="cpu", **given)

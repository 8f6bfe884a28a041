"""Fixtures of the server's tests: a real Chromium, drawn pictures, a model, exported files."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafuse.data.glyphs import glyphs
from dafuse.product.classifier import Classifier
from helpers.product_models import create, taught
from helpers.served_apps import png


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Drawn characters as files, by class."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = glyphs(train_per_class=6, test_per_class=0).train
    found: dict[str, list[Path]] = {}
    for label, name in ((0, "A"), (23, "X"), (14, "O"), (37, "l")):
        for number, pixels in enumerate(np.asarray(drawn.items)[drawn.labels == label]):
            path = folder / f"{name}{number}.png"
            path.write_bytes(png(pixels))
            found.setdefault(name, []).append(path)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from helpers.served_page import CHROMIUM, playwright  # skips where it is not installed

    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",  # which needs rights that a container does not give
                "--use-fake-device-for-media-stream",  # a camera that shows a moving pattern
                "--use-fake-ui-for-media-stream",  # and may be used without a question
            ],
        )
        yield launched
        launched.close()


@pytest.fixture
def model(tmp_path: Path, pictures: dict[str, list[Path]]) -> Classifier:
    """Make a model on the embedded backbone; it knows A and X."""
    classifier = create(tmp_path / "model")
    classifier.learn(pictures["A"] + pictures["X"], ["A"] * 6 + ["X"] * 6)
    return classifier


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models, as files: the names of the classes tell which of them answered."""
    folder = tmp_path_factory.mktemp("made")
    counts: list[dict[int, int]] = [{0: 2, 1: 2}, {2: 2, 3: 2, 4: 2}]
    for number, lesson in enumerate(counts):
        taught(folder / str(number), lesson).export(folder / f"{number}.onnx")
    return [folder / "0.onnx", folder / "1.onnx"]


@pytest.fixture
def file(made: list[Path], tmp_path: Path) -> Path:
    return shutil.copy(made[0], tmp_path / "pets.onnx")

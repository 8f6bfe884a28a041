"""Fixtures of the light core's tests. Nothing here may import torch, which is not installed."""

import os
from pathlib import Path

# Small arrays: more threads only wait for each other. Read when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest

from dafuse.data.sketches import write_sketches
from helpers.light_core import LATER, NAMES, dafuse


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `first` and `later` to teach, and `test` with classes of both."""
    root = tmp_path_factory.mktemp("drawings")
    write_sketches(root / "first", NAMES, 6, seed=0)
    write_sketches(root / "later", LATER, 6, seed=0)
    write_sketches(root / "test", [*NAMES, *LATER], 4, seed=1)
    return root


@pytest.fixture(scope="session")
def model(drawings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two lessons that tests may ask but not change."""
    path = tmp_path_factory.mktemp("models") / "model"
    dafuse("learn", path, drawings / "first")
    dafuse("learn", path, drawings / "later")
    return path

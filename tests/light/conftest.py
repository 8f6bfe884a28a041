"""Shared by the tests of the light core. Nothing here may import torch, which is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dafuse.data.sketches import write_sketches

NAMES = ["house", "oak", "fish"]
LATER = ["bus", "flower"]


def dafuse(
    *arguments: object, cwd: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The real command, which must end with this code."""
    environment = {name: value for name, value in os.environ.items() if name[:7] != "DAFUSE_"}
    command = [str(Path(sys.executable).with_name("dafuse")), *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


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

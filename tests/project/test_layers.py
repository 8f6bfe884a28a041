"""Imports go one way only, and what must stay light stays light."""

import ast
import subprocess
import sys
from collections import defaultdict

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from helpers.places import ROOT
from helpers.processes import clean_environment


def test_import_layers() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml")) == EXIT_STATUS_SUCCESS


@pytest.mark.parametrize(
    "code",
    [
        "import dafuse",
        "from dafuse.cli import main; main(['--help'])",
        "from dafuse.cli import main; main(['--version'])",
        "import dafuse.report.outputs",
        "from dafuse.commands import change, evaluate, export, info, learn, merge, predict, serve",
        "import dafuse.commands.bench",
        "import dafuse.product.predictor",
        "import dafuse.backbones.extractor",
        "import dafuse.product.server.app",
        "import dafuse.data.registry",
        "import dafuse.commands.listing; from dafuse.backbones.registry import BACKBONES",
    ],
)
def test_imports_no_torch(code: str) -> None:
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], env=clean_environment(), check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (
            "import dafuse.product.classifier, dafuse.taught.lift, dafuse.taught.open_extractor",
            False,
        ),
        ("from dafuse.taught.table import find_taught; find_taught('lift')", False),
        ("from dafuse.taught.table import find_taught; find_taught('daf')", True),
        ("import torch; from dafuse.taught.table import find_taught; find_taught('daf')", False),
    ],
)
def test_the_environment_changes_only_before_torch_is_imported(code: str, changed: bool) -> None:
    check = f"import os, sys; {code}; sys.exit('OMP_WAIT_POLICY' in os.environ)"
    environment = {k: v for k, v in clean_environment().items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", check], env=environment, check=False)
    assert done.returncode == changed


def test_source_files_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_module_name_tells_modules_apart() -> None:
    """Two modules have one name only where their folders tell the difference."""
    places = defaultdict(list)
    for path in (ROOT / "src" / "dafuse").rglob("*.py"):
        if path.parent.name != "commands" and path.name != "__init__.py":  # a command has its name
            places[path.stem].append(path.parent.name)
    assert {name: sorted(where) for name, where in places.items() if len(where) > 1} == {
        "arrays": ["data", "heads"],  # a source of images, and operations of numpy and torch
        "classifier": ["heads", "product"],  # over features, and the one that people teach
        "contract": ["methods", "taught"],
        "daf": ["methods", "taught"],
        "folder": ["engine", "product"],  # of a run, and of a model
        "lift": ["methods", "taught"],
        "registry": ["backbones", "data", "methods"],
        "simplecil": ["methods", "taught"],
        "tables": ["data", "report"],
    }

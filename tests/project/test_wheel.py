"""The wheel holds what the package needs, and its bill of materials names what it brings."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from helpers.places import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, made as the Makefile makes them."""
    out = tmp_path_factory.mktemp("wheel") / "dist"
    script = ROOT / "scripts" / "make_wheel.py"
    subprocess.run([sys.executable, script, "--out", out], check=True)
    return out


def test_the_wheel_holds_the_networks_the_pages_and_the_recipes(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    inside = set(ZipFile(wheel).namelist())
    package = ROOT / "src" / "dafuse"
    wanted = [
        file.relative_to(package.parent).as_posix()
        for pattern in ("*.py", "*.onnx", "*.safetensors", "*.html", "*.js", "*.css", "*.yaml")
        for file in package.rglob(pattern)
    ]
    assert len(wanted) > 200
    assert inside.issuperset(wanted)


def test_the_bill_of_materials_names_what_the_wheel_brings(made: Path) -> None:
    (wheel,), (bill,) = made.glob("*.whl"), made.glob("*.cdx.json")
    found = json.loads(bill.read_text())
    assert found["bomFormat"] == "CycloneDX"
    product = found["metadata"]["component"]
    assert (product["name"], product["version"]) == tuple(wheel.name.split("-")[:2])
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert product["hashes"] == [{"alg": "SHA-256", "content": digest}]
    parts = {part["name"].lower().replace("_", "-"): part for part in found["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for needed in project["dependencies"]:
        assert parts[re.split("[^a-z0-9-]", needed.lower())[0]]["version"]
    for weights in (ROOT / "src" / "dafuse" / "backbones").glob("*.safetensors"):
        listed = parts[weights.stem.replace("_", "-")]
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        assert listed["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert "torch" not in parts

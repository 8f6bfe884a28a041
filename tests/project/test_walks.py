"""The walks of CONTRIBUTING.md: every file that they name exists and has what they say."""

import ast
import re
from pathlib import Path

import pytest

from helpers.places import ROOT

SOURCE = ROOT / "src" / "dafuse"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
WALKS = re.findall(r"^`dafuse (\w+)`: an image.+\n\n((?:\d+\. .+\n)+)", TEXT, re.MULTILINE)
HOPS = [hop for _, hops in WALKS for hop in hops.splitlines()]
PLACES = TEXT.partition("## Where a new thing goes")[2].partition("\n## ")[0]


def defined(file: Path) -> set[str]:
    """Names of functions, classes, methods and options in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_three_walks_have_ten_hops_at_most() -> None:
    assert [command for command, _ in WALKS] == ["run", "learn", "predict"]
    assert all(1 < len(hops.splitlines()) <= 10 for _, hops in WALKS)


@pytest.mark.parametrize("hop", HOPS)
def test_a_hop_names_a_file_and_what_is_in_it(hop: str) -> None:
    words = re.findall(r"`([^`]+)`", hop)
    files = [SOURCE / word for word in words if word.endswith(".py")]
    assert files
    assert all(file.is_file() for file in files), files
    known = set().union(*map(defined, files))
    names = {part for word in words if not word.endswith(".py") for part in word.split(".")}
    assert names <= known | {"RunConfig"}


def test_places_of_new_things_exist() -> None:
    named = re.findall(r"`([\w/.]+(?:\.py|\.md|/))`", PLACES)
    assert len(named) > 8
    for name in named:
        assert (SOURCE / name).exists() or (ROOT / name).exists(), name

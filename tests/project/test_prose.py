"""The prose of the code: docstrings begin with an imperative or a noun phrase."""

import ast
from pathlib import Path

import pytest

from helpers.places import ROOT

FILES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CLAUSES = {"Of", "What", "Whether", "Which"}  # what these begin has no verb of its own


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_docstring_begins_with_a_clause(file: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, DOCUMENTED)]
    first_lines = [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]
    assert [line for line in first_lines if line.partition(" ")[0] in CLAUSES] == []

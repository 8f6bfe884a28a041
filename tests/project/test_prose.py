"""The prose of the code: docstrings begin with an imperative or a noun phrase."""

import ast
import re
from pathlib import Path

import pytest

from helpers.places import ROOT

FILES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# what these begin has no verb of its own
CLAUSES = {"How", "If", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
ARTICLES = {"a", "an", "the", "each", "every", "all", "its", "their", "them", "it", "what", "how"}
# after a plural noun, not after a verb: "Changes that need no images", "Runs of one method"
AFTER_NOUNS = {"and", "as", "at", "by", "from", "in", "of", "on", "over", "that", "to", "under"}


def first_lines(file: Path) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, DOCUMENTED)]
    return [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]


LINES = {file: first_lines(file) for file in FILES}
# "Read" of "Read the header": what an article follows, in some docstring
IMPERATIVES = {
    words[0]
    for lines in LINES.values()
    for line in lines
    if len(words := line.split()) > 1 and words[1] in ARTICLES and not words[0].endswith("s")
}


def begins_with_verb_in_s(line: str) -> bool:
    """Tell whether a line says what somebody does: "Reads a file", where "Read a file" is meant."""
    word, after = [*line.split(), "", ""][:2]
    if not re.fullmatch(r"[A-Z]\w*[^s]s", word):
        return False
    stems = {word[:-1], word.removesuffix("es"), word.removesuffix("ies") + "y"}
    return after in ARTICLES or (bool(stems & IMPERATIVES) and after not in AFTER_NOUNS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_docstrings_begin_with_an_imperative_or_a_noun(file: Path) -> None:
    assert [line for line in LINES[file] if line.partition(" ")[0] in CLAUSES] == []
    assert [line for line in LINES[file] if begins_with_verb_in_s(line)] == []


def test_verbs_are_told_from_plural_nouns() -> None:
    verbs = [
        "Reads a file.",
        "Writes what is new.",
        "Reads shards, by a network.",
        "Copies a file.",
    ]
    assert all(map(begins_with_verb_in_s, verbs))
    nouns = ["Changes that need no images.", "Runs of one method.", "Class means.", "Images cut."]
    assert not any(map(begins_with_verb_in_s, nouns))

"""docs/methods.md says of every method what the method's class says."""

import re
from pathlib import Path

import pytest

from dafuse.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "methods.md").read_text()
SECTIONS = {
    heading.partition(":")[0]: (heading, body)
    for heading, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE)
}
HEADER, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
TABLE = {
    re.sub(r"\[(.+)\]\(.+\)", r"\1", row[0]): dict(zip(HEADER, row, strict=True)) for row in ROWS
}
EXPLAINED_ELSEWHERE = {"daf", "daf-paper"}  # in docs/daf.md


def test_every_method_has_a_section_and_a_row_and_nothing_else_has() -> None:
    assert SECTIONS.keys() == TABLE.keys() == METHODS.keys()
    assert list(SECTIONS) == list(TABLE)  # in the same order
    assert len(ROWS) == len(TABLE)  # none twice


@pytest.mark.parametrize("name", METHODS)
def test_the_row_says_what_the_class_says(name: str) -> None:
    method, row = METHODS[name], TABLE[name]
    assert row["keeps"] == method.keeps
    assert row["images"] == ("yes" if method.keeps_images else "no")
    assert row["passes"] == method.passes
    known = row["assumes of the future"].replace("`", "")
    assert known == method.assumes.removesuffix(" about the future")
    number = method.paper.rpartition("/")[2]
    assert row["paper"] == f"[{number}]({method.paper})"


@pytest.mark.parametrize("name", METHODS)
def test_the_row_leads_to_the_section(name: str) -> None:
    heading, _ = SECTIONS[name]
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    assert TABLE[name]["name"] == f"[{name}](#{anchor})"


@pytest.mark.parametrize("name", sorted(METHODS.keys() - EXPLAINED_ELSEWHERE))
def test_sections_are_of_one_form(name: str) -> None:
    _, body = SECTIONS[name]
    labels = re.findall(r"^- \*\*(\w+):\*\*", body, re.MULTILINE)
    assert labels in (["Kept", "Cost", "Elsewhere"], ["Kept", "Cost", "Defaults", "Elsewhere"])
    before_bullets = body.partition("\n- ")[0]
    assert re.search(r"^    \S", before_bullets, re.MULTILINE)  # the loss


def test_local_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"

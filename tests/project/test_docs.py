"""The pages say what the code says, and their links lead somewhere."""

import csv
import re

import pytest

from dafuse.methods.registry import METHODS
from helpers.places import ROOT

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
PASSES = {  # through the network for a prediction after t tasks, as the table writes them
    "1": lambda t: 1,
    "2": lambda t: 2,
    "t": lambda t: t,
    "t + 1": lambda t: t + 1,
    "min(t, 2)": lambda t: min(t, 2),
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
    for tasks in (1, 2, 5):
        assert PASSES[row["passes"]](tasks) == method.passes(tasks, {})
    known = row["assumes of the future"].replace("`", "")
    assert known == method.assumes.removesuffix(" about the future")
    number = method.paper.rpartition("/")[2]
    assert row["paper"] == f"[{number}]({method.paper})"


@pytest.mark.parametrize("name", METHODS)
def test_the_row_leads_to_the_section(name: str) -> None:
    heading, _ = SECTIONS[name]
    assert TABLE[name]["name"] == f"[{name}](#{slug(heading)})"


@pytest.mark.parametrize("name", sorted(METHODS.keys() - EXPLAINED_ELSEWHERE))
def test_sections_are_of_one_form(name: str) -> None:
    _, body = SECTIONS[name]
    labels = re.findall(r"^- \*\*(\w+):\*\*", body, re.MULTILINE)
    assert labels in (["Kept", "Cost", "Elsewhere"], ["Kept", "Cost", "Defaults", "Elsewhere"])
    before_bullets = body.partition("\n- ")[0]
    assert re.search(r"^    \S", before_bullets, re.MULTILINE)  # the loss


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_local_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)", page.read_text()):
            target, _, part = link.partition("#")
            if "://" in target:
                continue
            led_to = page.parent / target if target else page
            assert led_to.exists(), f"{page.name}: {link}"
            if part:
                headings = re.findall(r"^#+ (.+)", led_to.read_text(), re.MULTILINE)
                assert part in map(slug, headings), f"{page.name}: {link}"


def test_each_section_of_the_results_asks_a_question_and_has_one_table() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert len(sections) >= 10
    for section in sections:
        heading, _, body = section.partition("\n")
        assert heading.endswith("?")
        assert len(re.findall(r"^\|---", body, re.MULTILINE)) == 1, heading


def test_the_page_about_ledgers_names_each_file_its_rows_and_its_columns() -> None:
    page = (ROOT / "docs" / "ledger.md").read_text()
    files = sorted((ROOT / "docs" / "ledgers").iterdir())
    said = dict(re.findall(r"^\| \[(ledgers/\S+)\]\(\1\) \| (\d+) \|", page, re.MULTILINE))
    assert sorted(said) == [f"ledgers/{file.name}" for file in files]
    columns = page.partition("## The columns")[2]
    explained = re.findall(r"^\| ([A-Z].*?) \|", columns, re.MULTILINE)
    titles = {title for group in explained for title in group.split(", ")}
    seen: set[str] = set()
    for file in files:
        with file.open(newline="") as text:
            rows = list(csv.DictReader(text))
        assert len(rows) == int(said[f"ledgers/{file.name}"])
        assert rows[0].keys() <= titles
        seen |= rows[0].keys()
        assert all(row["Command"].startswith("dafuse run ") for row in rows)
    assert seen == titles

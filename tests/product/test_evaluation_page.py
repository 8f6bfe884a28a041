"""The page of an evaluation: what it counts and shows, and that it is complete in itself."""

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dafuse.cli import main
from dafuse.data.dataset import Dataset, ImageSet
from dafuse.product.evaluation import Evaluation, evaluate
from dafuse.product.evaluation_page import (
    MATRIX,
    MISTAKES,
    evaluation_page,
    refusal_curve,
    reliability_bins,
    shown_in_matrix,
    worst_mistakes,
    write_evaluation_page,
)
from dafuse.product.predictor import Prediction
from dafuse.progress import Progress
from helpers.places import OLD_MODEL


def evaluated(known: Sequence[str], answers: list[tuple[str, str, float, bool]]) -> Evaluation:
    """An evaluation of images (class, taken for, probability, unknown)."""
    classes = list(dict.fromkeys(true for true, *_ in answers))
    labels = np.array([classes.index(true) for true, *_ in answers])
    images = [np.full((8, 12, 3), number % 256, np.uint8) for number in range(len(answers))]
    train = ImageSet(images, labels, np.arange(len(labels)))
    dataset = Dataset("made up", classes, train, train.take(np.zeros(0, int)))

    def answer(asked: Sequence[Any]) -> Iterator[Prediction]:
        for _, name, sure, unknown in answers:
            shown = "unknown" if unknown else name
            yield Prediction(shown, sure, unknown, sure - unknown, [(name, sure)])

    return evaluate(known, answer, dataset, Progress())


FEW = [
    ("cat", "cat", 0.9, False),
    ("cat", "dog", 0.8, False),
    ("cat", "cat", 0.3, True),
    ("dog", "dog", 0.7, False),
    ("dog", "cat", 0.95, False),
    ("owl", "cat", 0.6, False),
    ("owl", "dog", 0.2, True),
]


class Reader(HTMLParser):
    """Notes tags that are left open, and everything that the page would fetch or run."""

    VOID = ("meta", "img", "br", "rect", "circle", "path")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            loads = name in ("src", "href", "action", "srcset") or name.startswith("on")
            if loads and not (value or "").startswith("data:"):
                self.outside.append(f"{name}={value}")
        if tag not in self.VOID or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_complete_in_itself_and_names_are_escaped() -> None:
    wild = "<script>alert('$x')</script>&"
    answers = [(wild if true == "cat" else true, *rest) for true, *rest in FEW]
    page = evaluation_page(evaluated([wild, "cat", "dog"], answers), '<m"odel>', "a & b")
    read = Reader(page)
    assert not read.open
    assert not read.outside
    assert "script" not in read.tags
    assert "url(" not in page
    assert "@import" not in page
    assert wild in read.text
    assert '<m"odel> on a & b' in read.text
    assert "prefers-color-scheme: dark" in page


def test_the_worst_mistakes_come_first_with_both_names() -> None:
    evaluation = evaluated(["cat", "dog"], FEW)
    worst = worst_mistakes(evaluation.answered)
    assert [(one.name, one.answer) for one in worst] == [
        ("dog", "cat"),
        ("cat", "dog"),
        ("owl", "cat"),
    ]
    page = evaluation_page(evaluation, "m", "f")
    assert page.count("data:image/jpeg;base64,") == 3
    captions = re.findall(r"<figcaption><b>(.*?)</b><br>taken for (.*?) sure<", page)
    assert captions == [("dog", "cat, 95%"), ("cat", "dog, 80%"),
                        ("owl <i>(never taught)</i>", "cat, 60%")]  # fmt: skip
    many = evaluated(["cat", "dog"], [("cat", "dog", 0.5, False)] * (MISTAKES + 5))
    assert len(worst_mistakes(many.answered)) == MISTAKES


def cells(page: str) -> list[list[str]]:
    table = page.split('<table class="matrix">')[1].split("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows][1:]


def test_the_matrix_counts_every_image_of_known_classes() -> None:
    page = evaluation_page(evaluated(["cat", "dog"], FEW), "m", "f")
    assert cells(page) == [["1", "1", "1"], ["1", "1", ""]]  # the last column: unknown
    assert "owl</td><td>1 of 2" in page  # never taught


def test_a_matrix_of_many_classes_shows_those_confused_most() -> None:
    names = [f"class {number}" for number in range(150)]
    answers = [(name, name, 0.9, False) for name in names]
    answers += [("class 7", "class 120", 0.9, False)] * 3
    evaluation = evaluated(names, answers)
    assert shown_in_matrix(evaluation.answered, names) == ["class 7", "class 120"]
    answers += [(names[i], names[(i + 1) % 150], 0.5, False) for i in range(150)]
    evaluation = evaluated(names, answers)
    shown = shown_in_matrix(evaluation.answered, names)
    assert len(shown) == MATRIX
    assert {"class 7", "class 120"} <= set(shown)
    page = evaluation_page(evaluation, "m", "f")
    assert f"The {MATRIX} of 150 classes" in page
    rows = cells(page)
    assert len(rows) == MATRIX
    assert {len(row) for row in rows} == {MATRIX + 2}  # with "another" and unknown
    perfect = evaluated(names, [(name, name, 0.9, False) for name in names])
    assert "No image was taken for another class" in evaluation_page(perfect, "m", "f")


def test_classes_that_were_all_never_taught_still_make_a_page() -> None:
    page = evaluation_page(evaluated(["cow"], FEW), "m", "f")
    assert "None of these classes was taught" in page
    assert not Reader(page).open


def test_bins_say_how_sure_and_how_often_right() -> None:
    sure = np.array([0.91, 0.99, 0.55, 0.5, 1.0])
    right = np.array([True, False, True, False, True])
    bins = reliability_bins(sure, right)
    assert [one.images for one in bins] == [2, 3]
    assert [one.right for one in bins] == pytest.approx([1 / 2, 2 / 3])
    assert [one.probability for one in bins] == pytest.approx([0.525, 2.9 / 3])


def test_the_least_sure_are_refused_first_and_equals_together() -> None:
    sure = np.array([0.9, 0.2, 0.5, 0.5])
    right = np.array([True, False, True, False])
    refused, accuracy = refusal_curve(sure, right)
    assert refused.tolist() == pytest.approx([0.75, 0.25, 0.0])
    assert accuracy.tolist() == pytest.approx([1.0, 2 / 3, 0.5])


def test_pictures_of_any_size_are_small_in_the_page(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)).save(file)
    evaluation = evaluated(["cat", "dog"], [("cat", "dog", 0.9, False)])
    object.__setattr__(evaluation.answered[0], "image", file)
    page = tmp_path / "page.html"
    write_evaluation_page(evaluation, page, "m", "f")
    assert page.stat().st_size < 60_000


def test_the_command_writes_the_page_or_says_why_not_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("zero", "one"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20), "red").save(tmp_path / "images" / name / "0.png")
    page = tmp_path / "page.html"
    asked = ["evaluate", str(OLD_MODEL), str(tmp_path / "images"), "--device", "cpu", "--page"]
    main([*asked, str(page)])
    assert f"page: {page}" in capsys.readouterr().out
    assert "model-v1 on " in page.read_text()
    with pytest.raises(SystemExit):
        main([*asked, str(tmp_path / "nowhere" / "page.html")])
    said = capsys.readouterr()
    assert "cannot write" in said.err
    assert not said.out

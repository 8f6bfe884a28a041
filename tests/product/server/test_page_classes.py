"""The page of a model that knows 10,000 classes, in a real Chromium."""

from pathlib import Path

import pytest

from dafuse.product.classifier import Classifier
from helpers.many_classes import many_classes, name_of
from helpers.served_apps import TOKEN
from helpers.served_page import IN_A_BROWSER, classes_known, opened, playwright

pytestmark = IN_A_BROWSER
NODES = 1500  # elements of the page; 10,000 classes would be 40,000
SOME = 50  # classes that are shown at once


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    return many_classes(tmp_path / "model", 10_000)


def nodes(page: "playwright.Page") -> int:
    found: int = page.evaluate("document.querySelectorAll('*').length")
    return found


def test_a_class_is_found_among_ten_thousand(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    with opened(browser, model, teachable=False) as page:
        expect(page.locator("#about")).to_contain_text("10,000 classes")
        expect(classes_known(page)).to_have_count(SOME)
        expect(page.get_by_text("50 of 10,000 classes")).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.get_by_label("Find a class").press_sequentially("CLASS 0512", delay=10)
        expect(classes_known(page)).to_have_text([name_of(n) for n in range(5120, 5130)])
        expect(page.get_by_text("10 of 10,000 classes")).to_be_visible()
        assert len([url for url in asked if "/classes" in url]) < len("CLASS 0512")
        page.get_by_label("Find a class").fill("no such class")
        expect(classes_known(page)).to_have_count(0)
        page.get_by_label("Find a class").fill("")
        expect(classes_known(page)).to_have_count(SOME)
        page.get_by_role("button", name="Show more of 10,000").click()
        expect(classes_known(page)).to_have_count(2 * SOME)
        assert nodes(page) < NODES


def test_a_name_of_ten_thousand_is_offered_for_more_images(
    browser: "playwright.Browser", model: Classifier
) -> None:
    with opened(browser, model, f"#token={TOKEN}") as page:
        offered = page.locator("#known-names option")
        playwright.expect(offered).to_have_count(SOME)
        page.get_by_label("Name of a class").press_sequentially("class 0777", delay=10)
        playwright.expect(offered).to_have_count(10)
        values = offered.evaluate_all("options => options.map((one) => one.value)")
        assert values == [name_of(number) for number in range(7770, 7780)]
        assert nodes(page) < NODES


def test_answers_of_very_many_classes_make_a_short_summary(
    browser: "playwright.Browser", model: Classifier
) -> None:
    answers = """async () => {
        const { showSummary } = await import("/page/summary.js");
        showSummary([...Array(3000).keys()].map((number) => ({
            probability: 0.5, unknown: false, top: [{ name: `class ${number}`, probability: 0.5 }],
        })));
    }"""
    with opened(browser, model, teachable=False) as page:
        playwright.expect(classes_known(page)).to_have_count(SOME)
        page.evaluate(answers)
        rows = page.locator("#summary-rows tr")
        playwright.expect(rows).to_have_count(51)
        playwright.expect(rows.last).to_contain_text("2,950 other classes")
        playwright.expect(rows.last).to_contain_text("50.0 %")
        assert nodes(page) < NODES

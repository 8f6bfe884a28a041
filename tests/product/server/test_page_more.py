"""The page in a real Chromium: many images, the camera, classes, history and download."""

import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.taught.lift import TaughtLift
from helpers.image_plug_ins import HEIC
from helpers.product_models import create
from helpers.served_apps import TOKEN
from helpers.served_page import IN_A_BROWSER, classes_known, opened, playwright

pytestmark = IN_A_BROWSER


def test_many_pictures_are_summed_up_and_filtered(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    asked = 2 * (pictures["A"] + pictures["X"] + pictures["O"])
    answers = model.predict(asked, top=1)
    best = Counter(one.top[0][0] for one in answers)
    mean = sum(one.probability for one in answers if one.top[0][0] == "A") / best["A"]
    unknown = sum(one.unknown for one in answers if one.top[0][0] == "A")
    with opened(browser, model, teachable=False) as page:
        table = page.get_by_role("table", name="images")
        page.get_by_label("Choose images").set_input_files(asked[:3])
        expect(page.locator(".answer")).to_have_count(3)
        expect(table).to_be_hidden()  # three can be seen at once
        page.get_by_label("Choose images").set_input_files(asked[3:])
        expect(page.get_by_role("table", name="36 images")).to_be_visible()
        row = table.locator("tbody tr", has=page.get_by_role("rowheader", name="A"))
        expect(row.get_by_role("cell")).to_have_text(
            [str(best["A"]), f"{100 * mean:.1f} %", str(unknown or "–")]
        )
        cards = page.locator(".answer")
        expect(cards).to_have_count(24)
        page.get_by_role("button", name="Show 12 more of 36").click()
        expect(cards).to_have_count(36)
        choice = table.get_by_role("button", name="A")
        choice.click()
        expect(choice).to_have_attribute("aria-pressed", "true")
        expect(cards).to_have_count(min(24, best["A"]))
        choose = page.get_by_label("Show", exact=True)
        expect(choose).to_have_value("class:A")
        choose.select_option("class:X")
        expect(choice).to_have_attribute("aria-pressed", "false")
        expect(cards).to_have_count(min(24, best["X"]))
        table.get_by_role("button", name="X").click()  # again: all of them
        expect(choose).to_have_value("all")
        expect(cards).to_have_count(24)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("button", name="Clear all").click()
        expect(cards).to_have_count(0)
        expect(table).to_be_hidden()


def test_a_file_that_cannot_be_read_stops_no_other(
    browser: "playwright.Browser",
    model: Classifier,
    pictures: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    """It may come in a request with others, or in one of its own."""
    expect = playwright.expect
    bad = [tmp_path / f"{number}.heic" for number in range(5)]
    for path in bad:
        path.write_bytes(HEIC)
    chosen = [bad[0], *pictures["A"][:3], *bad[1:], *pictures["X"]]  # four in a request
    lines = [
        f"{path.name} cannot be read: HEIC needs a plug-in: pip install pillow-heif."
        for path in bad
    ]
    with opened(browser, model, f"#token={TOKEN}") as page:
        expect(classes_known(page)).to_have_count(2)  # and with them how many files a request has
        page.get_by_label("Choose images").set_input_files(chosen)
        expect(page.locator("#ask-status")).to_have_text("9 images answered, 5 skipped:")
        expect(page.get_by_label("Files that cannot be read").get_by_role("listitem")).to_have_text(
            lines
        )
        expect(page.get_by_role("table", name="9 images")).to_be_visible()
        names = page.locator(".answer img").evaluate_all("all => all.map((image) => image.alt)")
        assert names == [path.name for path in chosen if path not in bad]
        page.get_by_role("button", name="Clear all").click()
        expect(page.locator("#ask-skipped li")).to_have_count(0)

        page.get_by_label("Name of a class").fill("O")
        page.get_by_label("Add images of it").set_input_files(chosen)
        status, notes = page.locator("#teach-status"), page.locator("#notes li")
        expect(status).to_have_text("9 images of O added, 5 skipped:")
        expect(notes).to_have_text(lines)
        expect(page.locator(".staged")).to_contain_text("O 9 images")
        expect(page.locator(".thumbs img")).to_have_count(9)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_label("Add images of it").set_input_files(pictures["X"][0])
        expect(status).to_have_text("1 image of O added.")
        expect(notes).to_have_count(0)


@pytest.mark.parametrize("cleared", [False, True])
def test_lists_asked_at_the_same_time_keep_their_answers(
    browser: "playwright.Browser",
    model: Classifier,
    pictures: dict[str, list[Path]],
    cleared: bool,
) -> None:
    expect = playwright.expect
    asked: list[playwright.Route] = []

    def hold_the_second(route: "playwright.Route") -> None:
        asked.append(route)
        if len(asked) != 2:
            route.continue_()

    with opened(browser, model, teachable=False) as page:
        page.route("**/predict*", hold_the_second)
        expect(classes_known(page)).to_have_count(2)  # and with them how many files a request has
        shown = page.locator(".answer img")
        page.get_by_label("Choose images").set_input_files(pictures["X"])  # six: two are held
        expect(shown).to_have_count(4)
        page.get_by_label("Choose images").set_input_files(pictures["A"][0])
        expect(shown).to_have_count(5)
        expected = [pictures["A"][0], *pictures["X"]]  # the newest list first
        if cleared:
            page.get_by_role("button", name="Clear all").click()
            expect(shown).to_have_count(0)
            expected = pictures["X"][4:]
        asked[1].continue_()
        expect(shown).to_have_count(len(expected))
        names = shown.evaluate_all("images => images.map((image) => image.alt)")
        assert names == [file.name for file in expected]


def test_unknown_pictures_can_be_singled_out(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    sure = sorted(one.familiarity for one in model.predict(pictures["A"] + pictures["X"]))
    with opened(browser, model, teachable=False) as page:
        object.__setattr__(model.model.head, "threshold", (sure[4] + sure[5]) / 2)
        page.get_by_label("Choose images").set_input_files(pictures["A"] + pictures["X"])
        expect(page.get_by_role("table", name="12 images")).to_be_visible()
        page.get_by_label("Show", exact=True).select_option("unknown (5)")
        expect(page.locator(".answer h3")).to_have_text(["unknown"] * 5)


def test_a_class_is_renamed_and_forgotten_and_brought_back(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    with opened(browser, model, f"#token={TOKEN}") as page:
        row = page.get_by_role("row", name="Rename A")
        expect(row.get_by_role("cell").nth(0)).to_have_text("6")  # images
        page.get_by_role("button", name="Rename A").click()
        dialog = page.get_by_role("dialog", name="Rename A")
        expect(dialog.get_by_label("New name")).to_be_focused()
        page.keyboard.type("X")  # instead of the old one, which is selected
        page.keyboard.press("Enter")
        status = page.locator("#known-status")
        expect(status).to_contain_text("There is a class 'X' already")
        page.get_by_role("button", name="Rename A").click()
        page.keyboard.type("Ärger/1")
        dialog.get_by_role("button", name="Rename it").click()
        expect(status).to_contain_text("a class name has no slashes")
        page.get_by_role("button", name="Rename A").click()
        page.keyboard.type("Ärger & 1")
        page.keyboard.press("Enter")
        expect(status).to_have_text("A is now called Ärger & 1.")
        expect(classes_known(page)).to_have_text(["Ärger & 1", "X"])
        expect(page.get_by_role("heading", name="What it knows")).to_be_focused()

        forget = page.get_by_role("button", name="Forget Ärger & 1")
        forget.click()
        dialog = page.get_by_role("dialog", name="Forget Ärger & 1?")
        expect(dialog).to_contain_text("It was learned from 6 images.")
        expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(classes_known(page)).to_have_count(2)
        forget.click()
        expect(dialog.get_by_role("checkbox", name="For good")).not_to_be_checked()
        dialog.get_by_role("button", name="Forget it").click()
        expect(status).to_have_text(f"Ärger & 1 is forgotten. But {TaughtLift.remains}.")
        expect(classes_known(page)).to_have_text(["X"])
        page.get_by_role("button", name="Undo last step").click()
        page.get_by_role("dialog").get_by_role("button", name="Undo it").click()
        expect(classes_known(page)).to_have_text(["Ärger & 1", "X"])

        forget.click()
        dialog.get_by_role("checkbox", name="For good").check()
        expect(dialog.get_by_role("checkbox")).to_have_accessible_description(
            re.compile("all older versions of the model.* nothing left to take back")
        )
        dialog.get_by_role("button", name="Forget it").click()
        expect(status).to_have_text(f"Ärger & 1 is forgotten for good. But {TaughtLift.remains}.")
        expect(page.get_by_role("button", name="Undo last step")).to_be_disabled()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert model.classes == ["X"]
    assert model.folder.numbers() == [3]


def test_history_is_in_the_readers_time_and_its_last_step_can_be_undone(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    model.rename("A", "first")
    learned = datetime.fromisoformat(model.version.classes[0].updated)
    there = learned.astimezone(ZoneInfo("Asia/Tokyo"))
    zone = {"timezone_id": "Asia/Tokyo", "locale": "en-GB"}
    size = {"width": 1000, "height": 900}
    with opened(browser, model, f"#token={TOKEN}", viewport=size, **zone) as page:
        time = page.locator("#known-classes time").first
        expect(time).to_have_attribute("datetime", model.version.classes[0].updated)
        expect(time).to_have_text(f"{there.day} {there:%b %Y, %H:%M}")
        page.get_by_text("History", exact=True).click()
        steps = page.get_by_role("list", name="Steps, the last one first").get_by_role("listitem")
        expect(steps).to_have_count(2)
        expect(steps.nth(0)).to_contain_text("renamed A to first")
        expect(steps.nth(1)).to_contain_text("learned A (6), X (6)")
        expect(steps.nth(1)).to_contain_text(f"{there:%H:%M}")
        expect(steps.get_by_role("button")).to_have_count(1)  # for the last one alone
        page.get_by_role("button", name="Undo: renamed A to first").click()
        dialog = page.get_by_role("dialog", name="Take back the last step?")
        expect(dialog).to_contain_text(f"{there.day} {there:%b %Y}")
        dialog.get_by_role("button", name="Undo it").click()
        expect(steps).to_have_count(1)
        expect(steps.get_by_role("button")).to_have_count(0)
        expect(classes_known(page)).to_have_text(["A", "X"])


def test_the_model_is_downloaded(
    browser: "playwright.Browser",
    model: Classifier,
    pictures: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    with opened(browser, model, f"#token={TOKEN}") as page:
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as .onnx").click()
        assert download.value.suggested_filename == "model.onnx"
        download.value.save_as(tmp_path / "model.onnx")
        playwright.expect(page.locator("#known-status")).to_contain_text("model.onnx: ")
    found = ExportedModel(tmp_path / "model.onnx", threads=1).probabilities(pictures["A"])
    assert np.abs(found - model.probabilities(pictures["A"])).max() < 1e-4


def test_pictures_are_taken_with_the_camera(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    with opened(browser, model, f"#token={TOKEN}") as page:
        page.get_by_role("region", name="What is this?").get_by_role(
            "button", name="Use the camera"
        ).click()
        dialog = page.get_by_role("dialog", name="Take a photo")
        take = dialog.get_by_role("button", name="Take it")
        expect(take).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator(".answer")).to_have_count(1)
        expect(page.locator(".answer img")).to_have_js_property("complete", True)
        assert page.locator(".answer img").evaluate("image => image.naturalWidth") > 100
        seen = page.locator("video")
        expect(seen).to_have_js_property("srcObject", None)  # its light goes out

        camera = page.get_by_role("region", name="Teach it").get_by_role(
            "button", name="Use the camera"
        )
        camera.click()
        expect(page.locator("#teach-status")).to_have_text("Name the class first.")
        expect(dialog).to_be_hidden()
        page.keyboard.type("pattern")
        camera.click()
        for number in ("1 photo", "2 photos"):
            take.click()
            expect(dialog.get_by_role("status")).to_have_text(f"{number} taken.")
        page.keyboard.press("Escape")
        expect(seen).to_have_js_property("srcObject", None)
        expect(page.locator(".staged")).to_contain_text("pattern 2 images")


def test_without_a_camera_it_is_not_offered_or_says_why(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    with opened(browser, model) as page:
        expect(classes_known(page)).to_have_count(2)
        page.add_init_script("Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")
        page.reload()
        expect(classes_known(page)).to_have_count(2)
        expect(page.get_by_role("button", name="Use the camera")).to_have_count(0)
    with opened(browser, model) as page:
        page.evaluate(
            """() => {
                const none = async () => { throw new DOMException("", "NotFoundError"); };
                navigator.mediaDevices.getUserMedia = none;
            }"""
        )
        page.get_by_role("button", name="Use the camera").first.click()
        dialog = page.get_by_role("dialog", name="Take a photo")
        expect(dialog.get_by_role("status")).to_have_text("There is no camera.")
        expect(dialog.get_by_role("button", name="Take it")).to_be_disabled()


def test_many_classes_can_be_searched(
    browser: "playwright.Browser", tmp_path: Path, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    model = create(tmp_path / "many", method="simplecil")
    names = [f"class {number}" for number in range(12)]
    model.learn([pictures["A"][0]] * 12, names, recognise=False)
    with opened(browser, model, teachable=False) as page:
        expect(classes_known(page)).to_have_count(12)
        page.get_by_label("Find a class").fill("CLASS 1")
        expect(classes_known(page)).to_have_text(["class 1", "class 10", "class 11"])


def test_an_exported_file_has_a_page_too(
    browser: "playwright.Browser", model: Classifier, tmp_path: Path
) -> None:
    expect = playwright.expect
    model.export(tmp_path / "pets.onnx")
    exported = ExportedModel(tmp_path / "pets.onnx", threads=1)
    with opened(browser, exported, teachable=False) as page:
        expect(classes_known(page)).to_have_text(["A", "X"])
        expect(page.get_by_role("columnheader", name="Images")).to_be_hidden()
        expect(page.get_by_text("History", exact=True)).to_be_hidden()


def test_every_control_has_a_name(browser: "playwright.Browser", model: Classifier) -> None:
    with opened(browser, model, f"#token={TOKEN}") as page:
        playwright.expect(classes_known(page)).to_have_count(2)
        page.get_by_text("History", exact=True).click()
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, video")]
                .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
                .map((one) => one.id)"""
        )
        assert nameless == ["more"]  # which gets its name with the answers that it shows more of

"""The page in a real Chromium: asking, teaching, undoing, by mouse and by keyboard alone."""

import base64
from pathlib import Path

from dafuse.product.classifier import Classifier
from dafuse.progress import Progress
from helpers.product_models import QUICK, create
from helpers.served_apps import TOKEN
from helpers.served_page import IN_A_BROWSER, classes_known, opened, playwright

pytestmark = IN_A_BROWSER


def test_it_answers_with_bars(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    expected = model.predict(pictures["A"][0], top=2)[0]
    with opened(browser, model, teachable=False) as page:
        expect(classes_known(page)).to_have_text(["A", "X"])
        expect(page.get_by_role("heading", name="model", exact=True)).to_be_visible()
        assert page.title() == "model · dafuse"
        expect(page.get_by_role("heading", name="Teach it")).to_be_hidden()
        for change in ("Rename A", "Forget A", "Download as .onnx"):
            expect(page.get_by_role("button", name=change)).to_be_hidden()
        page.get_by_label("Choose images").set_input_files(pictures["A"][0])
        answer = page.locator(".answer")
        expect(answer.get_by_role("heading")).to_have_text(expected.name)
        bars = answer.get_by_role("listitem")
        expect(bars).to_contain_text([name for name, _ in expected.top])
        expect(bars.first).to_contain_text(f"{100 * expected.top[0][1]:.1f} %")
        assert answer.locator("img").evaluate("image => image.naturalWidth") == 64
        page.get_by_label("Choose images").set_input_files(pictures["X"])  # six: two requests
        expect(answer).to_have_count(7)
        expect(page.locator("#ask-status")).to_have_text("6 images answered.")
        page.get_by_label("Choose images").set_input_files(
            {"name": "notes.txt", "mimeType": "image/png", "buffer": b"no image"}
        )
        expect(page.locator("#ask-status")).to_have_text("0 images answered, 1 skipped:")
        expect(page.locator("#ask-skipped")).to_contain_text("notes.txt cannot be read")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360  # nothing sticks out of a small screen


def test_a_picture_unlike_all_is_unknown(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    with opened(browser, model) as page:
        object.__setattr__(model.model.head, "threshold", 1e9)  # nothing is familiar any more
        page.get_by_label("Choose images").set_input_files(pictures["A"][0])
        answer = page.locator(".answer")
        playwright.expect(answer.get_by_role("heading")).to_have_text("unknown")
        playwright.expect(answer).to_contain_text("Unlike every class")


def test_pictures_can_be_dropped_and_pasted(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    bring = """([area, kind, data]) => {
        const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
        const carried = new DataTransfer();
        carried.items.add(new File([bytes], "brought.png", { type: "image/png" }));
        const target = document.querySelector(area);
        target.dispatchEvent(kind === "drop"
            ? new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true })
            : new ClipboardEvent(kind, { clipboardData: carried, bubbles: true }));
    }"""
    data = base64.b64encode(pictures["A"][0].read_bytes()).decode()
    with opened(browser, model, f"#token={TOKEN}") as page:
        playwright.expect(classes_known(page)).to_have_count(2)
        page.evaluate(bring, ["#ask-drop", "drop", data])
        playwright.expect(page.locator(".answer")).to_have_count(1)
        page.evaluate(bring, ["body", "paste", data])
        playwright.expect(page.locator(".answer")).to_have_count(2)
        page.evaluate(bring, ["#teach-drop", "drop", data])
        playwright.expect(page.locator("#teach-status")).to_have_text("Name the class first.")
        playwright.expect(page.get_by_label("Name of a class")).to_be_focused()
        page.keyboard.type("O")
        page.evaluate(bring, ["#teach-drop", "paste", data])  # the focus is in that half
        playwright.expect(page.locator(".staged")).to_contain_text("O 1 image")


def test_an_accent_spelt_in_two_ways_is_one_class(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    with opened(browser, model, f"#token={TOKEN}") as page:
        rows = page.locator(".staged")
        for name, waiting in (("cafe\u0301", 2), ("caf\u00e9", 4)):
            page.get_by_label("Name of a class").fill(name)
            page.get_by_label("Add images of it").set_input_files(pictures["O"][:2])
            expect(rows).to_contain_text([f"caf\u00e9 {waiting} images"])
        expect(rows).to_have_count(1)
        expect(rows.locator("img")).to_have_count(4)
        page.get_by_role("button", name="Remove the images of").click()
        expect(rows).to_have_count(0)
        expect(page.get_by_role("button", name="Learn")).to_be_disabled()


def test_learning_when_nothing_waits_any_more_asks_for_pictures(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    with opened(browser, model, f"#token={TOKEN}") as page:
        page.get_by_label("Name of a class").fill("O")
        page.get_by_label("Add images of it").set_input_files(pictures["O"][:2])
        expect(page.locator(".staged")).to_have_count(1)
        gone = "fetch('/classes/O/images', {method: 'DELETE', headers: {Authorization: '%s'}})"
        page.evaluate(gone % f"Bearer {TOKEN}")  # from elsewhere: the page does not know
        learn = page.get_by_role("button", name="Learn")
        learn.click()
        expect(page.locator("#teach-status")).to_have_text("Add images first.")
        expect(page.locator(".staged")).to_have_count(0)
        expect(learn).to_be_disabled()
        page.get_by_label("Add images of it").set_input_files(pictures["O"][:2])
        expect(learn).to_be_enabled()


def test_it_is_taught_and_tried_and_undone(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    with opened(browser, model) as page:
        for name in ("O", "l"):
            page.get_by_label("Name of a class").fill(name)
            page.get_by_label("Add images of it").set_input_files(pictures[name])
            if name == "O":  # the token is asked for once: a wrong one again
                dialog = page.get_by_role("dialog", name="The server's token")
                dialog.get_by_label("Token").fill("not this one")
                dialog.get_by_role("button", name="Continue").click()
                expect(dialog).to_contain_text("was not right")
                dialog.get_by_label("Token").fill(TOKEN)
                dialog.get_by_role("button", name="Continue").click()
            row = page.locator(".staged", has_text=f"{name} 6 images")
            expect(row.locator("img")).to_have_count(6)
        expect(page.get_by_role("button", name="Undo last step")).to_be_disabled()
        mirrored = page.get_by_role("checkbox", name="Images may be mirrored")
        expect(mirrored).to_be_hidden()  # for methods that train
        page.get_by_role("button", name="Learn").click()
        status = page.locator("#teach-status")
        expect(status).to_contain_text("Learned O, l in ")
        expect(status).to_contain_text(" s. Try it now.")
        expect(page.get_by_role("progressbar")).to_be_hidden()
        expect(page.locator(".staged")).to_have_count(0)
        notes = page.locator("#notes").get_by_role("listitem")
        expect(notes.nth(0)).to_contain_text("of 12 images right, each left out in turn.")
        expect(notes.nth(1)).to_contain_text("Few images: fewer than 10 make a class unsure")
        assert model.version.step["classes"][0]["name"] == "O"
        right = model.version.step["classes"][0]["right"]
        expect(notes.nth(2)).to_have_text(f"O (6 images): {right} of 6 recognised.")
        expect(classes_known(page)).to_have_text(["A", "X", "O", "l"])

        expected = model.predict(pictures["O"][0], top=4)[0]
        page.get_by_label("Choose images").set_input_files(pictures["O"][0])
        expect(page.locator(".answer").get_by_role("listitem")).to_contain_text(
            [name for name, _ in expected.top]
        )
        page.reload()  # the token is kept: undo does not ask for it
        page.get_by_role("button", name="Undo last step").click()
        dialog = page.get_by_role("dialog", name="Take back the last step?")
        expect(dialog).to_contain_text("learned O (6), l (6)")
        dialog.get_by_role("button", name="Keep it").click()
        expect(classes_known(page)).to_have_count(4)
        page.get_by_role("button", name="Undo last step").click()
        dialog.get_by_role("button", name="Undo it").click()
        expect(status).to_contain_text("Undone:")
        expect(classes_known(page)).to_have_text(["A", "X"])
        expect(page.get_by_role("button", name="Undo last step")).to_be_disabled()
    assert model.classes == ["A", "X"]


def test_a_lesson_that_waits_for_another_process_says_so(
    browser: "playwright.Browser", model: Classifier, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    other = Classifier.open(model.folder.path, device="cpu")
    with opened(browser, model, f"#token={TOKEN}") as page:
        page.get_by_label("Name of a class").fill("O")
        page.get_by_label("Add images of it").set_input_files(pictures["O"])
        expect(page.locator(".staged")).to_contain_text("O 6 images")
        with other.folder.changing(Progress()):
            page.get_by_role("button", name="Learn").click()
            expect(page.get_by_role("status").filter(has_text="Waiting")).to_have_text(
                "Waiting for another process that is changing this model. Then O will be learned."
            )
            expect(page.get_by_role("progressbar", name="Waiting")).to_be_visible()
        expect(page.locator("#teach-status")).to_contain_text("Learned O")


def test_undo_takes_back_the_step_it_shows_and_no_other(
    browser: "playwright.Browser", model: Classifier
) -> None:
    expect = playwright.expect
    model.rename("A", "first")
    other = Classifier.open(model.folder.path, device="cpu")
    with opened(browser, model, f"#token={TOKEN}") as page:
        expect(classes_known(page)).to_have_text(["first", "X"])
        other.rename("X", "second")  # since the page was loaded
        undo = page.get_by_role("button", name="Undo last step")
        undo.click()
        dialog = page.get_by_role("dialog", name="Take back the last step?")
        expect(dialog).to_contain_text("renamed X to second")
        other.rename("first", "third")  # while the dialog is open
        dialog.get_by_role("button", name="Undo it").click()
        status = page.locator("#teach-status")
        expect(status).to_contain_text("Nothing was undone: the model was changed")
        expect(classes_known(page)).to_have_text(["third", "second"])
        undo.click()
        expect(dialog).to_contain_text("renamed first to third")
        dialog.get_by_role("button", name="Undo it").click()
        expect(status).to_contain_text("Undone:")
        expect(classes_known(page)).to_have_text(["first", "second"])
        other.undo()
        other.undo()
        undo.click()
        expect(status).to_have_text("There is nothing to undo any more.")
        expect(undo).to_be_disabled()
    assert other.classes == ["A", "X"]


def test_everything_can_be_done_by_keyboard(
    browser: "playwright.Browser", tmp_path: Path, pictures: dict[str, list[Path]]
) -> None:
    expect = playwright.expect
    model = create(tmp_path / "new", **QUICK)  # a method that trains: it has one more choice
    with opened(browser, model, f"#token={TOKEN}") as page:
        expect(page.locator("#ask-status")).to_have_text("It knows nothing yet: teach it first.")
        assert "token" not in page.url

        def to(locator: "playwright.Locator", key: str = "Tab") -> None:
            for _ in range(20):
                if locator.evaluate("element => element === document.activeElement"):
                    outline = page.evaluate(
                        "getComputedStyle(document.activeElement.matches('.file')"
                        " ? document.activeElement.nextElementSibling"
                        " : document.activeElement).outlineStyle"
                    )
                    assert outline == "solid"  # where the focus is can be seen
                    return
                page.keyboard.press(key)
            raise AssertionError("the keyboard does not get there")

        def choose(locator: "playwright.Locator", files: list[Path]) -> None:
            to(locator)
            with page.expect_file_chooser() as chooser:
                page.keyboard.press("Enter")
            chooser.value.set_files(files)

        for name in ("A", "X"):
            to(page.get_by_label("Name of a class"), "Tab" if name == "A" else "Shift+Tab")
            page.keyboard.press("Control+a")
            page.keyboard.type(name)
            page.keyboard.press("Enter")
            choose(page.get_by_label("Add images of it"), pictures[name][:3])
            expect(page.locator(".staged", has_text=f"{name} 3 images")).to_be_visible()
        to(page.get_by_role("button", name="Remove the images of X"))
        page.keyboard.press("Enter")
        expect(page.locator(".staged")).to_have_count(1)
        expect(page.get_by_label("Name of a class")).to_be_focused()
        choose(page.get_by_label("Add images of it"), pictures["X"][:3])
        expect(page.locator(".staged")).to_have_count(2)
        mirrored = page.get_by_role("checkbox", name="Images may be mirrored")
        expect(mirrored).to_have_accessible_description(
            "Switch off for letters, signs, left and right hands. It is remembered."
        )
        to(mirrored)
        page.keyboard.press("Space")
        expect(mirrored).not_to_be_checked()
        to(page.get_by_role("button", name="Learn"))
        page.keyboard.press("Enter")
        expect(page.locator("#teach-status")).to_contain_text("Learned A, X")
        expect(classes_known(page)).to_have_text(["A", "X"])
        choose(page.get_by_label("Choose images"), pictures["A"][:1])
        expect(page.locator(".answer")).to_have_count(1)
        expect(mirrored).not_to_be_checked()
        page.reload()
        expect(classes_known(page)).to_have_text(["A", "X"])
        expect(mirrored).not_to_be_checked()  # it is remembered
    assert model.version.step["flip"] is False


def test_beyond_this_machine_the_page_asks_for_the_token_first(
    browser: "playwright.Browser", model: Classifier
) -> None:
    with opened(browser, model, everywhere=True) as page:
        dialog = page.get_by_role("dialog", name="The server's token")
        playwright.expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        playwright.expect(page.locator("#ask-status")).to_contain_text("Without the token")
        page.reload()
        dialog.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        playwright.expect(classes_known(page)).to_have_text(["A", "X"])

"""Shared by the tests of the page: a real Chromium, drawn pictures, a model, its page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafuse.data.glyphs import glyphs
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.product.server.app import create_app
from dafuse.product.server.security import Access, Limits
from helpers.product_models import create
from helpers.served_apps import TOKEN, png, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
IN_A_BROWSER = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
    pytest.mark.xdist_group("browser"),
]
PATIENCE = 60_000  # milliseconds; a busy machine is not a failure


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Drawn characters as files, by class."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = glyphs(train_per_class=6, test_per_class=0).train
    found: dict[str, list[Path]] = {}
    for label, name in ((0, "A"), (23, "X"), (14, "O"), (37, "l")):
        for number, pixels in enumerate(np.asarray(drawn.items)[drawn.labels == label]):
            path = folder / f"{name}{number}.png"
            path.write_bytes(png(pixels))
            found.setdefault(name, []).append(path)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",  # which needs rights that a container does not give
                "--use-fake-device-for-media-stream",  # a camera that shows a moving pattern
                "--use-fake-ui-for-media-stream",  # and may be used without a question
            ],
        )
        yield launched
        launched.close()


@pytest.fixture
def model(tmp_path: Path, pictures: dict[str, list[Path]]) -> Classifier:
    """On the embedded backbone; it knows A and X."""
    classifier = create(tmp_path / "model")
    classifier.learn(pictures["A"] + pictures["X"], ["A"] * 6 + ["X"] * 6)
    return classifier


@contextmanager
def opened(
    browser: "playwright.Browser",
    model: Classifier | ExportedModel,
    fragment: str = "",
    everywhere: bool = False,
    teachable: bool = True,
    **context_options: Any,
) -> Iterator["playwright.Page"]:
    """The page of this model. Afterwards: nothing went wrong in it, and nothing left localhost."""
    limits = Limits(files=4, queue=8)  # so that six pictures take two requests
    access = Access(TOKEN, everywhere)
    app = create_app(model, access, limits, learn=teachable)
    wrong: list[str] = []
    asked: list[str] = []
    with serving(app) as address:
        size = {"width": 360, "height": 780}
        context = browser.new_context(**{"viewport": size, **context_options})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        # Choosers are caught while somebody listens. A listener that comes with each press of a
        # key comes too late now and then.
        page.on("filechooser", lambda chooser: None)
        page.goto(address + "/" + fragment)
        try:
            yield page
        finally:
            context.close()
    allowed = ("401", "404", "409", "413", "422")  # refusals, which Chromium notes on the console
    assert not [line for line in wrong if not any(status in line for status in allowed)]
    assert not [url for url in asked if not url.startswith((address, f"blob:{address}"))]


def classes_known(page: "playwright.Page") -> "playwright.Locator":
    return (
        page.get_by_role("region", name="What it knows").locator("tbody").get_by_role("rowheader")
    )

"""The page of a model, opened in a real Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.product.server.app import create_app
from dafuse.product.server.security import Access, Limits
from helpers.served_apps import TOKEN, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
IN_A_BROWSER = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
    pytest.mark.xdist_group("browser"),
]
PATIENCE = 60_000  # milliseconds; a busy machine is not a failure


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

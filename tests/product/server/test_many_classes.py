"""Answers stay small where the model knows very many classes."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dafuse.product.server.app import create_app
from dafuse.product.server.description import MOST, History
from dafuse.product.version import Version
from helpers.many_classes import many_classes, name_of
from helpers.product_models import pictures, taught
from helpers.served_apps import client, files, png, said

SENT = files(png(pictures({0: 1})[0][0]))
PATHS = ("/", "/docs", "/openapi.json", "/metrics", "/healthz", "/history", "/classes?limit=50")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with client(create_app(many_classes(tmp_path_factory.mktemp("few") / "model", 10))) as found:
        yield found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = many_classes(tmp_path_factory.mktemp("many") / "model", 10_000)
    with client(create_app(model)) as found:
        yield found


def test_no_answer_grows_with_the_classes(few: httpx.Client, many: httpx.Client) -> None:
    for path in PATHS:
        bytes_of_few, bytes_of_many = (len(one.get(path).content) for one in (few, many))
        assert bytes_of_many <= bytes_of_few + 8_000, path
    answers = [one.post("/predict", files=SENT).content for one in (few, many)]
    assert abs(len(answers[0]) - len(answers[1])) < 200
    assert len(many.get("/classes").content) < 250_000  # unless asked for less: a thousand classes


def test_classes_come_in_pages(many: httpx.Client) -> None:
    first = many.get("/classes").json()
    assert (len(first["classes"]), first["total"], first["found"]) == (MOST, 10_000, 10_000)
    assert [one["name"] for one in first["records"]] == first["classes"]
    names: list[str] = []
    while page := many.get("/classes", params={"offset": len(names)}).json()["classes"]:
        names += page
    assert names == [name_of(number) for number in range(10_000)]
    only_counts = many.get("/classes?limit=0").json()
    assert (only_counts["classes"], only_counts["total"]) == ([], 10_000)


def test_classes_can_be_searched(many: httpx.Client) -> None:
    found = many.get("/classes", params={"query": "CLASS 0512"}).json()
    assert found["classes"] == [name_of(number) for number in range(5120, 5130)]
    assert (found["found"], found["total"]) == (10, 10_000)
    later = many.get("/classes", params={"query": "class 0512", "offset": 8, "limit": 5}).json()
    assert later["classes"] == found["classes"][8:]
    assert [one["name"] for one in later["records"]] == later["classes"]
    nothing = many.get("/classes", params={"query": "no such"}).json()
    assert (nothing["classes"], nothing["records"], nothing["found"]) == ([], [], 0)


@pytest.mark.parametrize("asked", ["limit=1001", "limit=-1", "offset=-1", "query=" + 201 * "a"])
def test_what_cannot_be_asked_is_refused(many: httpx.Client, asked: str) -> None:
    refused = many.get(f"/classes?{asked}")
    assert refused.status_code == 422
    assert said(refused).startswith(asked.partition("=")[0])


def test_the_classes_that_an_answer_names_are_bounded(many: httpx.Client) -> None:
    assert many.post("/predict?top=1001", files=SENT).status_code == 422
    found = many.post("/predict?top=1000", files=SENT).json()["predictions"][0]["top"]
    assert len({one["name"] for one in found}) == 1000


def test_a_long_history_ends_with_the_last_steps(tmp_path: Path) -> None:
    version: Version = taught(tmp_path / "model", {0: 2, 1: 2}, method="simplecil").version
    version.history[:] = [version.step | {"version": number} for number in range(1, 3001)]
    told = History.of([version], 100)
    assert (told.total, [step.version for step in told.steps]) == (3000, [*range(2901, 3001)])

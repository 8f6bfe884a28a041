"""The server's API behind a real socket: what it does, what it refuses, and what it never does."""

import asyncio
import re
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from dafuse.product.classifier import Classifier
from dafuse.product.server import uploads
from dafuse.product.server.app import create_app
from dafuse.product.server.security import Access, Limits, Memory
from helpers.image_plug_ins import HEIC
from helpers.product_models import pictures, taught
from helpers.served_apps import BEARER, TOKEN, Greys, client, files, grey, png, said, wait_for

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture
def greys() -> Greys:
    return Greys()


@pytest.fixture
def asked(greys: Greys) -> Iterator[httpx.Client]:
    limits = Limits(body_mb=0.5, files=4, pixels=10_000, queue=4)
    with client(create_app(greys, limits=limits)) as found:
        yield found


# asking


def test_one_picture_and_many(asked: httpx.Client) -> None:
    one = asked.post("/predict", files=files(grey(7)))
    assert one.status_code == 200
    (found,) = one.json()["predictions"]
    assert (found["file"], found["name"], found["unknown"]) == ("0.png", "7", False)
    assert len(found["top"]) == 5
    many = asked.post("/predict?top=1", files=files(grey(1), grey(2), grey(3)))
    assert [one["name"] for one in many.json()["predictions"]] == ["1", "2", "3"]
    assert [len(one["top"]) for one in many.json()["predictions"]] == [1, 1, 1]


def test_the_answers_are_those_of_the_model(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6, 2: 6})
    images, _ = pictures({0: 2, 1: 2}, seed=5)
    expected = classifier.predict([png(image) for image in images], top=3)
    with client(create_app(classifier)) as served:
        assert served.get("/classes").json()["classes"] == ["class 0", "class 1", "class 2"]
        answered = served.post("/predict?top=3", files=files(*map(png, images))).json()
    for found, wanted in zip(answered["predictions"], expected, strict=True):
        assert (found["name"], found["unknown"]) == (wanted.name, wanted.unknown)
        names, shares = zip(*wanted.top, strict=True)
        assert [one["name"] for one in found["top"]] == list(names)
        assert [one["probability"] for one in found["top"]] == pytest.approx(list(shares), abs=1e-5)


def test_what_another_process_teaches_is_served_at_once(tmp_path: Path) -> None:
    taught(tmp_path / "model", {0: 6, 1: 6})
    served_one = Classifier.open(tmp_path / "model", device="cpu")
    other = Classifier.open(tmp_path / "model", device="cpu")
    picture = files(png(pictures({0: 1}, seed=5)[0][0]))
    with client(create_app(served_one)) as served:
        other.learn(*pictures({2: 6, 3: 6}, seed=1))
        top = served.post("/predict?top=9", files=picture).json()["predictions"][0]["top"]
        assert len(top) == 4
        other.undo()
        assert served.get("/classes").json()["classes"] == ["class 0", "class 1"]
        (tmp_path / "model" / "model.json").write_text("damaged")  # nobody is left without answer
        assert served.post("/predict", files=picture).status_code == 200


def test_health_classes_and_metrics(asked: httpx.Client) -> None:
    assert asked.get("/healthz").json()["status"] == "ok"
    knows = asked.get("/classes").json()
    assert len(knows["classes"]) == 256
    assert knows["records"] is None  # it does not say how many images
    assert knows["teaching"] is False
    assert knows["limits"] == {"body_bytes": 2**19, "files": 4, "pixels": 10_000}
    asked.post("/predict", files=files(grey(1), grey(2)))
    asked.post("/predict", files=files(b"no image"))
    asked.get("/made/up")
    lines = asked.get("/metrics").text.splitlines()
    assert 'dafuse_requests_total{route="/predict",status="200"} 1.0' in lines
    assert 'dafuse_requests_total{route="/predict",status="422"} 1.0' in lines
    assert 'dafuse_requests_total{route="other",status="404"} 1.0' in lines
    assert "dafuse_predicted_pictures_total 2.0" in lines
    assert "dafuse_upload_bytes 0.0" in lines
    sample = re.compile(r'dafuse_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


def test_the_description_is_whole_and_needs_no_network(asked: httpx.Client) -> None:
    described = asked.get("/openapi.json").json()
    assert {path: sorted(methods) for path, methods in described["paths"].items()} == {
        "/predict": ["post"],
        "/classes": ["get"],
        "/classes/{name}": ["delete"],
        "/classes/{name}/images": ["delete", "post"],
        "/classes/{name}/rename": ["post"],
        "/export": ["get"],
        "/history": ["get"],
        "/learn": ["get", "post"],
        "/undo": ["post"],
        "/healthz": ["get"],
        "/metrics": ["get"],
    }
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "HTTPValidationError" not in str(described["paths"])  # each refusal is one sentence
    for path in ("/", "/docs"):
        page = asked.get(path)
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for link in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            assert asked.get(link).status_code == 200, link
    docs = asked.get("/docs").text
    assert "POST /classes/{name}/images" in docs
    assert "Files that cannot be read are skipped and named." in docs
    assert "&#x27;http://127.0.0.1:8000/classes/cat/rename?to=TO&#x27;" in docs
    assert "-OJ http://127.0.0.1:8000/export" in docs


def secured(described: dict[str, Any]) -> dict[str, Any]:
    """Return what the description says that each address needs."""
    return {
        f"{method} {path}": operation.get("security")
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def test_the_description_says_what_needs_the_token(greys: Greys) -> None:
    teaching = ("post /learn", "get /learn", "post /undo", "get /export")
    teaching += ("delete /classes/{name}", "post /classes/{name}/rename")
    teaching += tuple(f"{method} /classes/{{name}}/images" for method in ("post", "delete"))
    asking = ("post /predict", "get /classes", "get /history", "get /metrics")
    token = [{"token": []}]
    with client(create_app(greys, Access(TOKEN))) as served:
        found = secured(served.get("/openapi.json").json())
        assert "Bearer" not in served.get("/docs").text.partition("/classes/{name}")[0]
    nobody = dict.fromkeys((*asking, "get /healthz"))
    assert found == dict.fromkeys(teaching, token) | nobody
    with client(create_app(greys, Access(TOKEN, everywhere=True))) as served:
        found = secured(served.get("/openapi.json").json())
        assert "Bearer" in served.get("/docs").text.partition("/classes/{name}")[0]
    assert found == dict.fromkeys((*teaching, *asking), token) | {"get /healthz": None}


# refusing


def bomb() -> bytes:
    """A PNG of a few hundred bytes that says it has 900 million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def postscript() -> bytes:
    """Return an image that Pillow would hand to another program."""
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    ("contents", "status", "sentence"),
    [
        ([b"not an image"], 422, "0.png cannot be read: not an image that Pillow knows"),
        ([b""], 422, "0.png cannot be read: the file is empty"),
        ([b"\xff\xd8\xff\xe0 broken"], 422, "0.png is"),
        ([b"not an image", b""], 422, "0.png cannot be read"),
        ([grey(1, side=101), b""], 422, "0.png has more than 10,000 pixels"),
        ([grey(1)[:45]], 422, "0.png"),
        ([postscript()], 422, "PostScript is not read; save it as JPEG or PNG"),
        ([HEIC], 422, "HEIC needs a plug-in: pip install pillow-heif"),
        ([b"\xff\x0a, small"], 422, "the server does not read JPEG XL; save it as JPEG or PNG"),
        ([uploads.JPEG_XL[1]], 422, "the server does not read JPEG XL; save it as JPEG or PNG"),
        ([grey(1, side=101)], 413, "more than 10,000 pixels"),
        ([bomb()], 413, "more than 10,000 pixels"),
        ([grey(1)] * 5, 413, "at most 4 files"),
        ([bytes(2**19)], 413, "more than the 0.5 MB"),
        ([], 415, "multipart/form-data"),
    ],
)  # fmt: skip
def test_what_is_too_much_or_no_picture(
    asked: httpx.Client, contents: list[bytes], status: int, sentence: str
) -> None:
    refused = asked.post("/predict", files=files(*contents))
    assert refused.status_code == status
    assert sentence in said(refused)
    assert asked.post("/predict", files=files(grey(9))).status_code == 200  # it lives on


def cut_off() -> bytes:
    """A PNG that is whole by its header only."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    return png(noise)[:9000]


def test_what_cannot_be_read_is_answered_in_its_place(greys: Greys, asked: httpx.Client) -> None:
    bad = {
        "no.txt": (b"no image", "no.txt cannot be read: not an image that Pillow knows"),
        "a.heic": (b"?", "a.heic cannot be read: HEIC needs a plug-in: pip install pillow-heif"),
        "cut.png": (cut_off(), "cut.png cannot be read: "),
        "large.png": (grey(1, side=101), "large.png has more than 10,000 pixels"),
    }
    for name, (content, sentence) in bad.items():
        sent = [("files", one) for one in [("1", grey(1)), (name, content), ("2", grey(2))]]
        answer = asked.post("/predict", files=sent)
        assert answer.status_code == 200
        first, wrong, last = answer.json()["predictions"]
        assert (first["name"], last["name"]) == ("1", "2")
        assert sorted(wrong) == ["error", "file"]
        assert wrong["file"] == name
        assert wrong["error"].startswith(sentence)
    refused = asked.post("/predict", files=[("files", (name, bad[name][0])) for name in bad])
    assert refused.status_code == 422
    sentences = [sentence for _, sentence in bad.values()]
    assert said(refused) == sentences[0]
    for found, sentence in zip(refused.json()["skipped"], sentences, strict=True):
        assert found.startswith(sentence)
    greys.batches.clear()
    assert asked.post("/predict", files=files(b"", b"")).status_code == 422
    assert not greys.batches  # nothing goes through the network


def test_a_picture_that_is_whole_by_its_header_only(asked: httpx.Client) -> None:
    refused = asked.post("/predict", files=files(cut_off()))
    assert refused.status_code == 422
    assert "0.png cannot be read" in said(refused)


def test_heic_is_looked_at_where_the_plug_in_is(heif_plugin: None, asked: httpx.Client) -> None:
    answer = asked.post("/predict", files=files(HEIC, grey(2)))
    assert [one["name"] for one in answer.json()["predictions"]] == ["0", "2"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"no form at all"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=" + "x" * 999, b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1"),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"A" * 99_999 + b": b\r\n\r\n1\r\n--x--"),
        ("application/json", b"{}"),
        ("image/png", grey(1)),
        ("", b"\0"),
    ],
)  # fmt: skip
def test_forms_that_are_none(
    asked: httpx.Client, kind: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    refused = asked.post("/predict", content=body, headers={"Content-Type": kind})
    assert refused.status_code in (400, 415)
    assert said(refused)
    assert not caplog.records  # whoever sends such forms writes nothing on this machine


def test_a_body_that_hides_its_length_is_counted_as_it_comes(asked: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n'
        for _ in range(12):
            yield bytes(2**16)

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    refused = asked.post("/predict", content=endless(), headers=kind)  # in chunks, no length
    assert refused.status_code == 413
    assert "0.5 MB" in said(refused)


def test_a_body_that_never_ends_is_given_up(
    asked: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 0.2)
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    kind = "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    with socket.create_connection((asked.base_url.host, asked.base_url.port or 0), 60) as slow:
        slow.sendall(f"{head}{kind}--x\r\n".encode())
        answer = slow.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408")
    assert asked.get("/healthz").status_code == 200


@pytest.mark.parametrize("top", ["0", "-1", "x", "99999"])
def test_a_top_that_is_no_number_of_classes(asked: httpx.Client, top: str) -> None:
    refused = asked.post(f"/predict?top={top}", files=files(grey(1)))
    assert refused.status_code == 422
    assert said(refused).startswith("top: ")


def test_addresses_that_are_not_there(asked: httpx.Client) -> None:
    assert "nothing at /nowhere" in said(asked.get("/nowhere"))
    assert asked.get("/predict").status_code == 405
    assert "by GET" in said(asked.get("/predict"))
    for outside in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py"):
        assert asked.get(outside).status_code == 404


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]",
        "[::1]:8000",
        "127.0.0.2",
    ],
)
def test_names_of_this_machine_are_answered(asked: httpx.Client, host: str) -> None:
    assert asked.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
        "evil.example:80@localhost", "localhost:80:80", "0.0.0.0", "[::]", "[::2]:8000", "::1",
        "192.168.0.7", "[localhost]", "[::1]evil.example", "testserver", "",
    ],
)  # fmt: skip
def test_a_page_of_another_name_cannot_ask_a_server_of_this_machine(
    greys: Greys, asked: httpx.Client, host: str
) -> None:
    for path in (
        "/",
        "/page/page.js",
        "/docs",
        "/openapi.json",
        "/classes",
        "/healthz",
        "/metrics",
    ):
        refused = asked.get(path, headers={"Host": host})
        assert refused.status_code == 421, path
        assert "localhost, 127.0.0.1 or [::1]" in said(refused)
        assert refused.headers["x-content-type-options"] == "nosniff"
    assert asked.post("/predict", files=files(grey(1)), headers={"Host": host}).status_code == 421
    assert not greys.batches
    counted = 'dafuse_requests_total{route="other",status="421"} 8.0'
    assert counted in asked.get("/metrics").text.splitlines()


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: evil.example\r\n"])
def test_a_request_names_one_host(asked: httpx.Client, hosts: str) -> None:
    with socket.create_connection((asked.base_url.host, asked.base_url.port or 0), 60) as raw:
        raw.sendall(f"GET /healthz HTTP/1.0\r\n{hosts}\r\n".encode())
        answer = raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 4")


def test_an_error_inside_is_one_sentence_and_spoils_nobody_elses_answer(greys: Greys) -> None:
    greys.go_on.clear()
    with client(create_app(greys)) as asked, ThreadPoolExecutor(4) as clients:

        def ask(level: int) -> httpx.Response:
            return httpx.post(f"{asked.base_url}/predict", files=files(grey(level)), timeout=60)

        first = clients.submit(ask, 1)
        wait_for(lambda: greys.batches)
        others = [clients.submit(ask, level) for level in (12, 13, 14)]
        wait_for(lambda: "dafuse_queued_pictures 3" in asked.get("/metrics").text)
        greys.go_on.set()
        statuses = [future.result().status_code for future in (first, *others)]
        assert statuses == [200, 200, 500, 200]
        assert "should not have happened" in said(others[1].result())
        assert others[2].result().json()["predictions"][0]["name"] == "14"


# many at once


def test_pictures_that_wait_together_are_one_batch_and_each_gets_its_own_answer(
    greys: Greys,
) -> None:
    greys.go_on.clear()
    with client(create_app(greys)) as asked, ThreadPoolExecutor(21) as clients:

        def ask(level: int) -> str:
            answer = httpx.post(
                f"{asked.base_url}/predict?top={1 + level % 3}",
                files=files(grey(level)),
                timeout=60,
            )
            (found,) = answer.json()["predictions"]
            assert len(found["top"]) == 1 + level % 3
            return found["name"]

        first = clients.submit(ask, 255)
        wait_for(lambda: greys.batches)
        others = {level: clients.submit(ask, level) for level in range(100, 120)}
        wait_for(lambda: "dafuse_queued_pictures 20" in asked.get("/metrics").text)
        greys.go_on.set()
        assert first.result() == "255"
        for level, future in others.items():
            assert future.result() == str(level)
    assert greys.batches == [1, 20]


def test_large_pictures_are_not_decoded_all_at_once(greys: Greys) -> None:
    large = grey(3, side=3000)  # 9 million pixels: two are more than a batch may have
    with client(create_app(greys)) as asked:
        answer = asked.post("/predict", files=files(large, large, grey(4)))
    assert [found["name"] for found in answer.json()["predictions"]] == ["3", "3", "4"]
    assert greys.batches == [1, 2]


def test_a_small_request_does_not_wait_for_all_of_a_large_one(greys: Greys) -> None:
    greys.go_on.clear()
    with client(create_app(greys)) as asked, ThreadPoolExecutor(3) as clients:

        def ask(*pictures: bytes) -> int:
            sent = files(*pictures)
            return httpx.post(f"{asked.base_url}/predict", files=sent, timeout=60).status_code

        large = clients.submit(ask, *[grey(level, side=3000) for level in (1, 2, 3)])
        wait_for(lambda: greys.batches)
        small = [clients.submit(ask, *[grey(level)] * 5) for level in (8, 9)]
        wait_for(lambda: "dafuse_queued_pictures 12" in asked.get("/metrics").text)
        greys.go_on.set()
        assert [future.result() for future in (large, *small)] == [200] * 3
    assert greys.levels[0] == 1
    assert sorted(greys.levels[1:-2]) == [8] * 5 + [9] * 5
    assert greys.levels[-2:] == [2, 3]


def test_overload_is_refused_and_passes(greys: Greys, asked: httpx.Client) -> None:
    greys.go_on.clear()

    def ask(level: int) -> httpx.Response:
        return httpx.post(f"{asked.base_url}/predict", files=files(grey(level)), timeout=60)

    with ThreadPoolExecutor(5) as clients:
        first = clients.submit(ask, 1)
        wait_for(lambda: greys.batches)
        waiting = [clients.submit(ask, level) for level in range(2, 6)]  # as many as may wait
        wait_for(lambda: "dafuse_queued_pictures 4" in asked.get("/metrics").text)
        refused = ask(6)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "try again" in said(refused)
        assert asked.get("/healthz").status_code == 200
        greys.go_on.set()
        assert all(future.result().status_code == 200 for future in (first, *waiting))
    assert ask(6).json()["predictions"][0]["name"] == "6"


def test_uploads_together_have_a_limit_of_memory(greys: Greys) -> None:
    greys.go_on.clear()
    noise = np.random.default_rng(0).integers(0, 256, (180, 180, 3), dtype=np.uint8)
    with (
        client(create_app(greys, limits=Limits(body_mb=0.1))) as asked,
        ThreadPoolExecutor(9) as clients,
    ):

        def ask() -> int:
            answer = httpx.post(f"{asked.base_url}/predict", files=files(png(noise)), timeout=60)
            return answer.status_code

        held = [clients.submit(ask)]  # each 97 kB of at most 8 x 102 kB
        wait_for(lambda: greys.batches)
        held += [clients.submit(ask) for _ in range(7)]
        wait_for(lambda: "dafuse_queued_pictures 7" in asked.get("/metrics").text)
        assert ask() == 503
        greys.go_on.set()
        assert [future.result() for future in held] == [200] * 8
        assert ask() == 200
        assert "dafuse_upload_bytes 0.0" in asked.get("/metrics").text


def test_an_upload_is_in_memory_once() -> None:
    """Otherwise twice as much would be held as is counted."""
    rng = np.random.default_rng(0)
    contents = [png(rng.integers(0, 256, (800, 800, 3), dtype=np.uint8)) for _ in range(4)]
    asked = httpx.Request("POST", "http://localhost/predict", files=files(*contents))
    body, chunk = asked.read(), 2**16
    starts = iter(range(0, len(body), chunk))

    async def receive() -> dict[str, Any]:
        start = next(starts)
        end = start + chunk
        return {"type": "http.request", "body": body[start:end], "more_body": end < len(body)}

    headers = [(name.lower(), value) for name, value in asked.headers.raw]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)

    async def held() -> int:
        async with uploads.uploads(request, Limits(), Memory(2**30)) as sent:
            assert [image.data for image in sent.images] == contents
            return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        assert asyncio.run(held()) < 1.3 * len(body)
    finally:
        tracemalloc.stop()


def test_beyond_this_machine_everything_but_page_and_health_needs_the_token(greys: Greys) -> None:
    with client(create_app(greys, Access(TOKEN, everywhere=True))) as served:
        for path in ("/", "/docs", "/openapi.json", "/healthz"):
            assert served.get(path).status_code == 200
            assert served.get(path, headers={"Host": "pets.example"}).status_code == 200
        for path in ("/classes", "/metrics"):
            assert served.get(path).status_code == 401
            assert served.get(path, headers=BEARER).status_code == 200
        assert served.post("/predict", files=files(grey(1))).status_code == 401
        assert served.post("/predict", files=files(grey(1)), headers=BEARER).status_code == 200

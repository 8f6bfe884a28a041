"""Shared by the tests of the server: apps behind real sockets, and pictures to send them."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from PIL import Image

from dafuse.product.classifier import Classifier
from dafuse.product.server.app import create_app
from dafuse.product.server.connections import Server
from dafuse.product.server.security import Access, Limits
from product_models import pictures

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
File = tuple[str, tuple[str, bytes]]


@contextmanager
def serving(app: FastAPI, most: int | None = None) -> Iterator[str]:
    """The app behind a real socket of this machine; its address. ``most``: connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(app, most)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What the condition gives once that is something."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def png(pixels_HW3: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, "PNG")
    return file.getvalue()


def grey(level: int, side: int = 8) -> bytes:
    return png(np.full((side, side, 3), level, dtype=np.uint8))


def files(*contents: bytes) -> list[File]:
    return [("files", (f"{i}.png", content)) for i, content in enumerate(contents)]


def learned(
    client: httpx.Client, lessons: dict[str, Sequence[bytes]], **query: Any
) -> dict[str, Any]:
    """Stage these, learn them, and give the end of the job."""
    for name, contents in lessons.items():
        sent = client.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        assert sent.status_code == 201, sent.text
    assert client.post("/learn", params=query, headers=BEARER).status_code == 202
    return ended(client)


def ended(client: httpx.Client) -> dict[str, Any]:
    def job() -> dict[str, Any] | None:
        found = client.get("/learn", headers=BEARER).json()
        return None if found["state"] == "running" else found

    return wait_for(job)


@contextmanager
def client(app: Any) -> Iterator[httpx.Client]:
    with serving(app) as address, httpx.Client(base_url=address, timeout=120) as found:
        yield found


@contextmanager
def teachable(classifier: Classifier, **limits: Any) -> Iterator[httpx.Client]:
    with client(create_app(classifier, Access(TOKEN), Limits(**limits), learn=True)) as found:
        yield found


def lesson(counts: dict[int, int], seed: int = 0) -> dict[str, list[bytes]]:
    images, names = pictures(counts, seed)
    found: dict[str, list[bytes]] = {}
    for image, name in zip(images, names, strict=True):
        found.setdefault(name, []).append(png(image))
    return found


def said(response: httpx.Response) -> str:
    """The one sentence of a refusal, which may also have one on each file."""
    assert response.headers["content-type"] == "application/json"
    content = response.json()
    assert list(content) in (["error"], ["error", "skipped"])
    assert "\n" not in content["error"]
    return content["error"]

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

from dafuse.data.images import UnreadableImage, read_image
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import Prediction
from dafuse.product.server.app import create_app
from dafuse.product.server.connections import Server
from dafuse.product.server.security import Access, Limits
from helpers.product_models import pictures

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
File = tuple[str, tuple[str, bytes]]


class Greys:
    """Answers with the picture's grey level, and remembers the batches it was given."""

    def __init__(self) -> None:
        self.classes = [str(level) for level in range(256)]
        self.batches: list[int] = []
        self.levels: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def model(self) -> "Greys":
        return self

    def follow(self) -> None:
        pass

    def answers(self, images: Sequence[bytes], top: int) -> Iterator[Prediction | UnreadableImage]:
        self.batches.append(len(images))
        self.go_on.wait(150)  # not for ever: a test that failed must come to its end
        for data in images:
            try:
                level = int(read_image(data)[0, 0, 0])
            except UnreadableImage as error:
                yield error
                continue
            self.levels.append(level)
            if level == 13:
                raise RuntimeError("a picture that breaks the network")
            named = [(str(level), 0.9), *((str(other), 0.01) for other in range(top - 1))]
            yield Prediction(str(level), 0.9, False, 1.0, named)


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
    """Wait until the condition gives something, and return that."""
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

"""A lesson that is posted to `dafuse serve` in a process of its own."""

import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from faults.command import PATIENCE, Ended, Running, start

TOKEN = "a-token-of-the-storm"


def teach_by_server(model: Path, photos: Path, before: Callable[[], None] | None) -> Ended:
    """Serve the model, post the pictures, learn them, and end the server, unless it dies of it."""
    options = ("--port", "0", "--allow-learn", "--token", TOKEN)
    running = start("serve", model, *options, before=before)
    try:
        with suppress(httpx.TransportError):
            _teach(running, photos)
        running.signal(signal.SIGINT)
        return running.wait()
    except BaseException:
        running.signal(signal.SIGKILL)
        raise


def _teach(running: Running, photos: Path) -> None:
    address = _address(running)
    if address is None:
        return
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=address, headers=bearer, timeout=PATIENCE) as client:
        for folder in sorted(photos.iterdir()):
            files = [("files", (one.name, one.read_bytes())) for one in sorted(folder.iterdir())]
            client.post(f"/classes/{folder.name}/images", files=files).raise_for_status()
        client.post("/learn").raise_for_status()
        while client.get("/learn").json()["state"] == "running":
            time.sleep(0.02)


def _address(running: Running) -> str | None:
    """Return the address once it serves; None where it has ended before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and running.is_alive():
        if found := re.search(r"at (http://\S+);", running.said()[0]):
            return found[1]
        time.sleep(0.02)
    return None

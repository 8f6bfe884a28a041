"""Clients of a server that ask without pause, each on a connection of its own.

The requests are written by hand, so that the clients leave the processors to the server.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Loaded:
    """The outcome of a load."""

    seconds: float
    taken: list[float]  # seconds of each request
    statuses: Counter[int]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.taken) / self.seconds

    def latency(self, percentile: float) -> float:
        """Milliseconds that this percentage of the requests took at most."""
        return 1000 * float(np.percentile(self.taken, percentile))


def form_request(host: str, image: Path) -> bytes:
    """Return a request to predict the image, as a form."""
    head = f'--dafuse\r\nContent-Disposition: form-data; name="f"; filename="{image.name}"\r\n\r\n'
    body = head.encode() + image.read_bytes() + b"\r\n--dafuse--\r\n"
    lines = [
        "POST /predict HTTP/1.1",
        f"Host: {host}",
        "Content-Type: multipart/form-data; boundary=dafuse",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def load(host: str, port: int, request: bytes, clients: int, requests: int) -> Loaded:
    """Send the request so many times; each client sends it again as soon as it is answered."""
    return asyncio.run(_load(host, port, request, clients, requests))


async def _load(host: str, port: int, request: bytes, clients: int, requests: int) -> Loaded:
    left = iter(range(requests))  # shared: a client that is faster sends more
    taken: list[float] = []
    statuses: Counter[int] = Counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for _ in left:
            start = time.perf_counter()
            writer.write(request)
            statuses[await _answered(reader)] += 1
            taken.append(time.perf_counter() - start)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Loaded(time.perf_counter() - start, taken, statuses)


async def _answered(reader: asyncio.StreamReader) -> int:
    """Return the status of the next answer, once all of it is read."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lengths = [line.partition(":")[2] for line in head if line.lower().startswith("content-length")]
    await reader.readexactly(int(lengths[0]))
    return int(head[0].split()[1])

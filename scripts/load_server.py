"""Load test of a running `dafuse serve`: requests a second, latency, refusals, memory.

    dafuse serve pets --port 8000 &
    python scripts/load_server.py http://127.0.0.1:8000 cat.jpg --clients 1 8 64 --pid $!

Each client keeps one connection and sends the image again as soon as it is answered. The requests
are written by hand, so that the clients leave the processors to the server.
"""

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("image", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=1000, help="at each number of clients")
    parser.add_argument("--pid", type=int, help="of the server, to see its memory")
    options = parser.parse_args()
    where = urlsplit(options.url)
    host, port = where.hostname or "127.0.0.1", where.port or 80
    request = form_request(where.netloc, options.image)
    asyncio.run(load(host, port, request, 1, 20))  # what is only done once is done
    memory = "memory" if options.pid else ""
    print(f"{'clients':>7} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8}  {memory:>8}  statuses")
    for clients in options.clients:
        start = time.perf_counter()
        taken, statuses = asyncio.run(load(host, port, request, clients, options.requests))
        rate = len(taken) / (time.perf_counter() - start)
        p50, p99 = 1000 * np.percentile(taken, [50, 99])
        memory = f"{megabytes(options.pid):5.0f} MB" if options.pid else ""
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        print(f"{clients:7} {rate:10.1f} {p50:8.1f} {p99:8.1f}  {memory:>8}  {shown}")


def form_request(host: str, image: Path) -> bytes:
    head = f'--dafuse\r\nContent-Disposition: form-data; name="f"; filename="{image.name}"\r\n\r\n'
    body = head.encode() + image.read_bytes() + b"\r\n--dafuse--\r\n"
    lines = [
        "POST /predict HTTP/1.1",
        f"Host: {host}",
        "Content-Type: multipart/form-data; boundary=dafuse",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def load(
    host: str, port: int, request: bytes, clients: int, requests: int
) -> tuple[list[float], Counter[int]]:
    """Seconds that each request took, and how often each status came."""
    left = iter(range(requests))  # shared: a client that is faster sends more
    taken: list[float] = []
    statuses: Counter[int] = Counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for _ in left:
            start = time.perf_counter()
            writer.write(request)
            statuses[await answered(reader)] += 1
            taken.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return taken, statuses


async def answered(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, once all of it is read."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lengths = [line.partition(":")[2] for line in head if line.lower().startswith("content-length")]
    await reader.readexactly(int(lengths[0]))
    return int(head[0].split()[1])


def megabytes(pid: int) -> float:
    """Memory that the process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()

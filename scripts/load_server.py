"""Load test of a running `dafuse serve`: requests a second, latency, refusals, memory.

    dafuse serve pets --port 8000 &
    python scripts/load_server.py http://127.0.0.1:8000 cat.jpg --clients 1 8 64 --pid $!

Each client keeps one connection and sends the image again as soon as it is answered.
"""

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from dafuse.benchmarks.http_load import form_request, load


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
    load(host, port, request, 1, 20)  # what is only done once is done
    memory = "memory" if options.pid else ""
    print(f"{'clients':>7} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8}  {memory:>8}  statuses")
    for clients in options.clients:
        found = load(host, port, request, clients, options.requests)
        p50, p99 = found.latency(50), found.latency(99)
        memory = f"{megabytes(options.pid):5.0f} MB" if options.pid else ""
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(found.statuses.items()))
        print(f"{clients:7} {found.rate:10.1f} {p50:8.1f} {p99:8.1f}  {memory:>8}  {shown}")


def megabytes(pid: int) -> float:
    """Memory that the process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()

"""`dafuse serve` of an exported file by two workers, beside one: requests a second and p99.

Both servers run all the time and are asked in turn, so one of them is always idle. The clients are
on the same machine and take processor time from both.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from dafuse.benchmarks.http_load import Loaded, form_request, load
from dafuse.benchmarks.rounds import BenchRow, Measured, compared
from dafuse.benchmarks.setting import SEED, Parts, Setting
from dafuse.data.sketches import SKETCHES, write_sketches
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier

CLASSES = 5
SERVERS = {
    "1 worker": ["--workers", "1"],
    "1 worker, 1 thread": ["--workers", "1", "--threads", "1"],
    "2 workers, 1 thread each": ["--workers", "2", "--threads", "1"],
}
SERVING = re.compile(r"at (http://\S+);")


@dataclass(frozen=True)
class ServingSizes:
    clients: tuple[int, ...]
    requests: int  # of all clients, in a round
    height: int  # of the image


SIZES = {
    "gpu": ServingSizes((1, 8, 64), 600, 480),
    "cpu": ServingSizes((1, 8, 64), 300, 480),
    "quick": ServingSizes((2,), 8, 48),
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    return {
        f"{clients} clients, an image each": partial(_workers, setting, sizes, clients)
        for clients in sizes.clients
    }


def _workers(setting: Setting, sizes: ServingSizes, clients: int) -> list[BenchRow]:
    late = {name: Measured() for name in SERVERS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model, image = _exported(Path(folder), sizes)
        servers = {
            name: stack.enter_context(_serving(model, options)) for name, options in SERVERS.items()
        }

        def ask(name: str) -> float:
            found = _asked(servers[name], image, clients, sizes.requests)
            late[name].values.append(found.latency(99))
            return found.rate

        for url in servers.values():  # what is done once is done, by each worker
            _asked(url, image, 8, 40)
        variants = {name: partial(ask, name) for name in SERVERS}
        rates = setting.alternate(variants, f"serving {clients} clients")
    note = f"{sizes.requests} requests a round, an image {sizes.height} pixels high"
    one, alone, two = SERVERS
    return [
        compared(one, "requests/s", rates[one], note=note),
        compared(alone, "requests/s", rates[alone], (one, rates[one])),
        compared(two, "requests/s", rates[two], (one, rates[one])),
        compared(f"{one}, p99", "ms", late[one]),
        compared(f"{alone}, p99", "ms", late[alone], (one, late[one]), "share"),
        compared(f"{two}, p99", "ms", late[two], (one, late[one]), "share"),
    ]


def _exported(folder: Path, sizes: ServingSizes) -> tuple[Path, Path]:
    """Make an exported model, and an image to ask it about."""
    images = write_sketches(folder / "images", list(SKETCHES)[:CLASSES], 4, SEED, sizes.height)
    classifier = Classifier.create(folder / "model", device="cpu")
    classifier.learn(images)
    classifier.export(folder / "model.onnx")
    return folder / "model.onnx", next(images.glob("*/*.jpg"))


def _asked(url: str, image: Path, clients: int, requests: int) -> Loaded:
    where = urlsplit(url)
    request = form_request(where.netloc, image)
    found = load(str(where.hostname), where.port or 80, request, clients, requests)
    if refused := requests - found.statuses[200]:
        raise DafuseError(f"{refused} of {requests} requests were not answered: {found.statuses}")
    return found


@contextmanager
def _serving(model: Path, options: list[str]) -> Iterator[str]:
    """Serve the model while the block lasts; its address."""
    command = [sys.executable, "-m", "dafuse", "serve", str(model), "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = SERVING.search(server.stdout.readline())
            if found is None:
                raise DafuseError("the server did not start")
            yield found[1]
        finally:
            server.terminate()

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
WORKERS = (1, 2)
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
    late: dict[int, Measured] = {workers: Measured() for workers in WORKERS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model, image = _exported(Path(folder), sizes)
        servers = {workers: stack.enter_context(_serving(model, workers)) for workers in WORKERS}

        def ask(workers: int) -> float:
            found = _asked(servers[workers], image, clients, sizes.requests)
            late[workers].values.append(found.latency(99))
            return found.rate

        for workers in WORKERS:  # what is done once is done, by each worker
            _asked(servers[workers], image, 8, 40)
        variants = {f"{workers} workers": partial(ask, workers) for workers in WORKERS}
        rates = list(setting.alternate(variants, f"serving {clients} clients").values())
    note = f"{sizes.requests} requests a round, an image {sizes.height} pixels high"
    return [
        compared("1 worker", "requests/s", rates[0], note=note),
        compared("2 workers", "requests/s", rates[1], ("1 worker", rates[0])),
        compared("1 worker, p99", "ms", late[1]),
        compared("2 workers, p99", "ms", late[2], ("1 worker", late[1]), "share"),
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
def _serving(model: Path, workers: int) -> Iterator[str]:
    """Serve the model by so many workers while the block lasts; its address."""
    command = [sys.executable, "-m", "dafuse", "serve", str(model), "--port", "0"]
    with subprocess.Popen(
        [*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = SERVING.search(server.stdout.readline())
            if found is None:
                raise DafuseError("the server did not start")
            yield found[1]
        finally:
            server.terminate()

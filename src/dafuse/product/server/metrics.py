"""Counters and gauges of the server, for Prometheus.

Several workers write theirs to files of one folder, by prometheus_client's multiprocess mode; each
of them answers with what all have.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

COUNTERS = {  # name -> its help, its labels
    "requests_total": ("Requests answered, by route and status.", ["route", "status"]),
    "request_seconds_total": ("Seconds until requests were answered in full.", ["route"]),
    "predicted_pictures_total": ("Images that went through the network to be predicted.", []),
    "batches_total": ("Batches that those images went in.", []),
    "lessons_total": ("Lessons that ended, by outcome.", ["outcome"]),
}
GAUGES = {
    "queued_pictures": "Images that wait to be predicted.",
    "undecoded_pictures": "Images that wait to be decoded, for a lesson.",
    "upload_bytes": "Bytes of uploads held in memory, without those staged to be learned.",
    "staged_pictures": "Images that wait to be learned.",
    "classes": "Classes that the model knows.",
    "learning": "1 while a lesson is learned or another step is under way.",
}
OFTEN = 1.0  # seconds between two notes of the gauges, for other workers to read
disable_created_metrics()  # or each counter would tell when it began, too


class Metrics:
    """The counters of one server, and gauges that are read when Prometheus asks."""

    def __init__(self) -> None:
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")  # None: there are no workers
        self._registry = CollectorRegistry()
        self._noted: list[tuple[Gauge, Callable[[], float]]] = []
        self._counters = {
            name: Counter(f"dafuse_{name}", what, labels, registry=self._registry)
            for name, (what, labels) in COUNTERS.items()
        }

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        gauge = Gauge(
            f"dafuse_{name}",
            GAUGES[name],
            registry=self._registry,
            # of workers: the classes are the same for all, the others are added up
            multiprocess_mode="livemostrecent" if name == "classes" else "livesum",
        )
        if self._folder is None:
            gauge.set_function(read)
        else:
            self._noted.append((gauge, read))

    def text(self) -> str:
        if self._folder is None:
            return generate_latest(self._registry).decode()
        self._note()
        of_all = CollectorRegistry()
        MultiProcessCollector(of_all, self._folder)
        return generate_latest(of_all).decode()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Note the gauges now and then while the block lasts, if there are other workers."""
        noting = asyncio.create_task(self._keep_noting())
        try:
            yield
        finally:
            noting.cancel()
            with suppress(asyncio.CancelledError):
                await noting

    async def _keep_noting(self) -> None:
        while self._noted:
            self._note()
            await asyncio.sleep(OFTEN)

    def _note(self) -> None:
        for gauge, read in self._noted:
            gauge.set(read())

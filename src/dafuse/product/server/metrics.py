"""Counters and gauges of the server, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import generate_latest

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
disable_created_metrics()  # or each counter would tell when it began, too


class Metrics:
    """The counters of one server, and gauges that are read when Prometheus asks."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"dafuse_{name}", what, labels, registry=self._registry)
            for name, (what, labels) in COUNTERS.items()
        }

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        Gauge(f"dafuse_{name}", GAUGES[name], registry=self._registry).set_function(read)

    def text(self) -> str:
        return generate_latest(self._registry).decode()

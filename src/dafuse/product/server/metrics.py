"""Counters and gauges in the text format that Prometheus reads."""

from collections import defaultdict
from collections.abc import Callable
from threading import Lock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "requests_total": "Requests answered, by route and status.",
    "request_seconds_total": "Seconds from the first byte of a request to the end of its answer.",
    "predicted_pictures_total": "Pictures that went through the network to be predicted.",
    "batches_total": "Batches that those pictures went in.",
    "lessons_total": "Lessons that ended, by outcome.",
    "queued_pictures": "Pictures that wait to be predicted.",
    "undecoded_pictures": "Pictures that wait to be decoded, for a lesson.",
    "upload_bytes": "Bytes of uploads held in memory, without those staged to be learned.",
    "staged_pictures": "Pictures that wait to be learned.",
    "classes": "Classes that the model knows.",
    "learning": "1 while a lesson is learned or another step is under way.",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What is counted, and what is read when it is asked for."""

    def __init__(self) -> None:
        self._lock = Lock()  # lessons end in a thread of their own
        self._counters: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            series = self._counters[name]
            series[key] = series.get(key, 0) + amount

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        self._gauges[name] = read

    def text(self) -> str:
        lines = []
        with self._lock:
            counters = {name: dict(series) for name, series in sorted(self._counters.items())}
        for name, series in counters.items():
            lines += _head(name, "counter")
            lines += [f"dafuse_{name}{_labels(key)} {series[key]:.10g}" for key in sorted(series)]
        for name, read in sorted(self._gauges.items()):
            lines += [*_head(name, "gauge"), f"dafuse_{name} {read():.10g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP dafuse_{name} {HELP[name]}", f"# TYPE dafuse_{name} {kind}"]


def _labels(labels: Labels) -> str:
    """Labels as Prometheus reads them; routes, statuses and outcomes need no escaping."""
    shown = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{shown}}}" if shown else ""

"""Processes that make the steps of an experiment: of this machine, or of a Ray cluster.

This module imports no torch: a new process first learns how many threads it may use.
"""

import multiprocessing
import os
import secrets
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafuse.cluster import KILLED, why_of_ray
from dafuse.engine.worker_place import ClusterShare, WorkerPlace
from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from dafuse.experiments.making import LastBench, Step

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ENDS = 10.0  # seconds in which a process must end that is told to
_last: "LastBench | None" = None


def make_step(step: "Step", place: WorkerPlace) -> str:
    """Make a step in this worker; return why its input does not allow it, or nothing."""
    global _last
    import torch

    from dafuse.experiments.making import LastBench
    from dafuse.progress import Progress

    place.enter()
    torch.set_num_threads(place.threads)
    _last = _last or LastBench()
    progress = Progress()
    try:
        step.make(progress, _last.of(place.fitted(step.config), progress))
    except DafuseError as error:
        return str(error)
    return ""


class LocalProcesses:
    """So many processes of this machine at a time, each with its part of the threads.

    Each is a pool of its own, so one that dies takes no other down.
    """

    retries = 1

    def __init__(self, count: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // count)
        if (told := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(told) > 0:
            threads = min(threads, int(told))
        self.place = WorkerPlace(threads, 1 / count)
        self._pools: list[ProcessPoolExecutor | None] = [None] * count
        self._work: list[Future[str] | None] = [None] * count
        self._before = set(multiprocessing.active_children())

    def submit(self, step: "Step") -> "Future[str] | None":
        for slot, work in enumerate(self._work):
            if work is None or work.done():
                try:
                    self._work[slot] = self._pool(slot).submit(make_step, step, self.place)
                except BrokenExecutor:  # its process died
                    self._pools[slot] = None
                    self._work[slot] = self._pool(slot).submit(make_step, step, self.place)
                return self._work[slot]
        return None

    def in_words(self, error: BaseException) -> str:
        if isinstance(error, BrokenExecutor):
            return KILLED
        return f"{type(error).__name__}: {error}"

    def __enter__(self) -> "LocalProcesses":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End all processes; at once where the work was stopped."""
        if kind is not None:
            mine = set(multiprocessing.active_children()) - self._before
            for child in mine:
                child.terminate()
            for child in mine:
                child.join(ENDS)
                if child.is_alive():
                    child.kill()
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=kind is None, cancel_futures=True)

    def _pool(self, slot: int) -> ProcessPoolExecutor:
        pool = self._pools[slot]
        if pool is None:
            spawn = multiprocessing.get_context("spawn")
            begin = _begin_worker, (self.place.threads,)
            pool = self._pools[slot] = ProcessPoolExecutor(1, spawn, *begin)
        return pool


def _begin_worker(threads: int) -> None:
    """Set the threads before anything reads them; end with the process that began this one."""
    for name in THREADS:
        os.environ[name] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first one ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayTasks:
    """Tasks of a Ray cluster, which schedules them and makes a failed one once more itself."""

    retries = 0

    def __init__(self, ray: Any, share: ClusterShare) -> None:
        self._ray = ray
        given = share.resources(ray)
        self.place = WorkerPlace(share.cpus, share.memory(ray))
        self._make = ray.remote(max_retries=1, retry_exceptions=True, **given)(make_step)
        self._asked: list[Any] = []

    def submit(self, step: "Step") -> "Future[str]":
        self._asked.append(self._make.remote(step, self.place))
        future: Future[str] = self._asked[-1].future()
        return future

    def in_words(self, error: BaseException) -> str:
        return why_of_ray(self._ray, error)

    def __enter__(self) -> "RayTasks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for ref in self._asked:
                self._ray.cancel(ref, force=True)


def require_shared(ray: Any, out: Path) -> None:
    """Refuse a cluster of which some machine does not see this folder, or where we are."""
    probe = out.resolve() / f".seen-{secrets.token_hex(8)}"
    probe.touch()
    try:
        seen = ray.remote(num_cpus=0, max_retries=1)(sees)
        on = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        asked = [
            (
                node["NodeManagerHostname"],
                seen.options(scheduling_strategy=on(node["NodeID"], soft=False)).remote(
                    str(probe), os.getcwd()
                ),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        blind = [host for host, found in asked if not ray.get(found)]
    finally:
        probe.unlink(missing_ok=True)
    if blind:
        raise DafuseError(
            f"{out.resolve()} is not one folder for all machines of the cluster: "
            f"{', '.join(blind)} does not see it; start dafuse in a folder that they share, or "
            "name one by --out"
        )


def sees(probe: str, folder: str) -> bool:
    """Tell whether this machine has the probe and the folder."""
    return os.path.exists(probe) and os.path.isdir(folder)

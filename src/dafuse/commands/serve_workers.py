"""Several processes that serve one model at one socket. uvicorn starts them, and starts them again.

Each worker opens the model itself. Whatever is given to one is sent through a pipe: nobody sees the
token. Heavy things are imported in functions, for a worker must soon tell that it is alive.
"""

import inspect
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from socket import socket
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.supervisors import Multiprocess

from dafuse.errors import DafuseError
from dafuse.product.server.connections import Connections, most_connections, rules
from dafuse.wording import counted

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dafuse.commands.open_model import NetworkOptions
    from dafuse.product.server.security import Access, Limits

log = logging.getLogger("dafuse.server")
SILENT = 10  # seconds until a worker that tells nothing is taken for hung, and replaced
STEADY = 20.0  # seconds that a worker lives whose loss has nothing to do with its start
TRIES = 2  # for each worker, to start one that stays alive
PER_PROCESSOR = 8  # workers; more of them are a slip of the finger


@dataclass(frozen=True)
class Opening:
    """The values from which a worker makes its own server of the model."""

    model: str
    network: "NetworkOptions"
    access: "Access"
    limits: "Limits"
    name: str

    def __call__(self) -> "FastAPI":
        from dafuse.commands.serve import open_served, prepare_process
        from dafuse.product.server.app import create_app

        prepare_process()
        try:
            served = open_served(self.model, self.network)
        except DafuseError as error:  # the file may be half-written just now: uvicorn tries again
            log.error("a worker cannot open the model: %s", error)
            os._exit(1)  # at once: uvicorn would wait for an answer while Python tears itself down
        return create_app(served, self.access, self.limits, name=self.name)


def require_number(workers: int, processors: int) -> None:
    """Refuse a number of workers that makes no sense."""
    if workers < 1:
        raise DafuseError(f"--workers must be at least 1, not {workers}")
    if workers > PER_PROCESSOR * processors:
        raise DafuseError(
            f"{workers} workers are too many for {counted(processors, 'processor')}, and each "
            f"opens the model: --workers {processors} makes use of all"
        )


def run_workers(opening: Opening, listening: socket, workers: int) -> None:
    """Serve by so many processes until Ctrl-C or SIGTERM; SIGHUP renews them one by one."""
    with TemporaryDirectory(prefix="dafuse-metrics-") as metrics:
        # prometheus_client of each worker reads it, and writes its numbers there
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
        connections = Connections(most_connections(), [listening])
        config = rules(
            opening,
            connections,
            burst=1,  # or the first to wake takes all that have come, and the others have none
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=SILENT,
        )
        sockets = [listening]
        if "target" in inspect.signature(Multiprocess).parameters:  # before uvicorn 0.51
            target = uvicorn.Server(config).run
            supervisor = ServeWorkers(config, target=target, sockets=sockets)  # type: ignore[call-arg]
        else:
            supervisor = ServeWorkers(config, sockets=sockets)
        supervisor.run()
    if supervisor.gave_up:
        raise DafuseError("no worker stays alive: leave out --workers to see why")


class ServeWorkers(Multiprocess):
    """uvicorn's supervisor, which also says so when a worker was lost, and ends if all are."""

    gave_up = False
    _known: frozenset[int] = frozenset()
    _lost = 0  # since a worker was steady
    _steady_at = float("inf")

    def keep_subprocess_alive(self) -> None:
        before = self._pids()
        super().keep_subprocess_alive()
        now = self._pids()
        for pid in before - now:
            log.error("worker %d was lost; another takes its place", pid)
        for pid in self._known - now:
            _drop_gauges(pid)
        if not self._known & now:  # all are new
            self._steady_at = time.monotonic() + STEADY
        if time.monotonic() > self._steady_at:
            self._lost = 0
        self._lost += len(before - now)
        if self._lost > TRIES * self.config.workers:
            self.gave_up = True
            self.should_exit.set()
        self._known = now

    def _pids(self) -> frozenset[int]:
        return frozenset(one.process.pid for one in self.processes if one.process.pid is not None)


def _drop_gauges(pid: int) -> None:
    """Remove a dead process's gauges from /metrics; its counters stay in the totals."""
    from prometheus_client.multiprocess import mark_process_dead

    with suppress(OSError):
        mark_process_dead(pid, os.environ["PROMETHEUS_MULTIPROC_DIR"])

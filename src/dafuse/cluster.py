"""The connection to a Ray cluster: join one that runs, or start one of this machine alone.

Ray schedules, ships and retries. This module only begins and ends the connection, and says in one
line what is wrong. Nothing is imported before it is asked for.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dafuse.errors import DafuseError
from dafuse.progress import Progress
from dafuse.wording import first_line

AUTO = "auto"  # the cluster that RAY_ADDRESS or `ray start` names; else this machine alone
OPTION = "--cluster"
HOST_AND_PORT = re.compile(r"(?P<host>[^\s/@:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
ANSWERS = 5.0  # seconds in which a host must take a connection
SAYS_RAY = 30.0  # seconds in which it must answer as Ray does


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """Return `--cluster` that stands alone as `--cluster=auto`, and one with an address joined.

    The word behind it is its address only if it is `auto` or HOST:PORT, so that a recipe or a
    folder may follow. After `--` nothing is an option.
    """
    words: list[str] = []
    place = 0
    while place < len(arguments) and arguments[place] != "--":
        word, place = arguments[place], place + 1
        if word == OPTION:
            following = arguments[place] if place < len(arguments) else ""
            given = following == AUTO or HOST_AND_PORT.fullmatch(following) or "://" in following
            word, place = f"{OPTION}={following if given else AUTO}", place + bool(given)
        words.append(word)
    return [*words, *arguments[place:]]


@contextmanager
def joined(address: str, progress: Progress | None = None) -> Iterator[Any]:
    """Join the cluster and yield the module `ray`; leave the cluster at the end.

    A program that is connected already stays so, before and after.
    """
    _require_known_form(address)
    try:
        import ray
    except ImportError:
        raise DafuseError("ray is not installed: pip install 'dafuse[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    _connect_to(address, ray, progress)
    try:
        yield ray
    finally:
        with _own_signals():
            ray.shutdown()


def _connect_to(address: str, ray: Any, progress: Progress | None) -> None:
    found = running() if address == AUTO else address
    if found is not None:
        _require_ray(found)
    elif progress is not None:
        progress.say("no Ray cluster is running here: starting one of this machine alone")
    how = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
    try:
        with _own_signals():
            ray.init(address=found or "local", **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        which = f"join the Ray cluster at {found}" if found else "start Ray"
        raise DafuseError(f"cannot {which}: {first_line(error)}") from None


def _require_known_form(address: str) -> None:
    if "://" in address:
        raise DafuseError(
            f"--cluster {address}: start dafuse on a machine of the cluster, and give HOST:PORT, "
            "as ray start shows it"
        )
    found = HOST_AND_PORT.fullmatch(address)
    if address != AUTO and not (found and 0 < int(found["port"]) < 2**16):
        raise DafuseError(
            f"--cluster takes nothing, {AUTO} or HOST:PORT as ray start shows it, not {address!r}"
        )


def running() -> str | None:
    """Return the address of a cluster that runs here, as far as anybody told; None if none does.

    A cluster that was killed leaves its address behind.
    """
    if named := os.environ.get("RAY_ADDRESS"):
        _require_known_form(named)
        return named if named != AUTO else None
    from ray._private.services import find_bootstrap_address  # as ray.init() does

    found = find_bootstrap_address(None)
    with suppress(OSError):
        if found:
            _reach(found)
            return str(found)
    return None


def _require_ray(address: str) -> None:
    """Refuse in bounded time what does not answer: Ray itself tries again for minutes."""
    try:
        _reach(address)
    except OSError as error:
        why = error.strerror or str(error)
        raise DafuseError(
            f"no Ray cluster can be reached at {address} ({why.lower()}): start one with "
            "ray start --head, or say --cluster alone to use this machine"
        ) from None
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        subprocess.run(ask, capture_output=True, timeout=SAYS_RAY, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        raise DafuseError(
            f"what listens at {address} does not answer as a Ray cluster: give the address that "
            "ray start shows, and have the same version of ray here and there"
        ) from None


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the way in which this program treats SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)

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
from dafuse.wording import counted, first_line

AUTO = "auto"  # the cluster that RAY_ADDRESS or `ray start` names; else this machine alone
LOCAL = "local"  # in RAY_ADDRESS: this machine alone
OPTION, VARIABLE = "--cluster", "RAY_ADDRESS"
HOST_AND_PORT = re.compile(r"(?P<host>[^\s/@:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
ANSWERS = 5.0  # seconds in which a host must take a connection
SAYS_RAY = 30.0  # seconds in which it must answer as Ray does
RETRIES = 5  # of a shard whose worker is lost: one that kills every worker must end
KILLED = "its process was killed, perhaps since memory ran out"
# Ray prints these to standard output, with the last lines of a log, whenever a node goes
NODE_WENT = "RAY_DEDUP_LOGS_SKIP_REGEX", "^(Raylet is terminated|The node with node id)"


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
    ray = require_possible(address)
    if ray.is_initialized():
        yield ray
        return
    _connect_to(address, ray, progress or Progress())
    try:
        yield ray
    finally:
        with _own_signals():
            ray.shutdown()


def require_possible(address: str) -> Any:
    """Return the module `ray`; refuse an address of no form, or a machine without Ray."""
    _require_known_form(address, OPTION, f"nothing, {AUTO} or HOST:PORT")
    if address == AUTO and (named := _named()) not in (AUTO, LOCAL):
        _require_known_form(named, VARIABLE, f"{AUTO}, {LOCAL} or HOST:PORT")
    try:
        with _raylets_unread():
            import ray
    except ImportError:
        raise DafuseError("ray is not installed: pip install 'dafuse[ray]'") from None
    return ray


def require_there(address: str) -> None:
    """Refuse what `joined` would refuse, without joining a cluster or starting one."""
    if not require_possible(address).is_initialized() and (found := meant(address)):
        _require_ray(found, address)


def _connect_to(address: str, ray: Any, progress: Progress) -> None:
    found = meant(address)
    if found is not None:
        _require_ray(found, address)
    elif _named() == LOCAL:
        progress.say(f"starting a Ray cluster of this machine alone ({VARIABLE}={LOCAL})")
    else:
        progress.say("no Ray cluster is running here: starting one of this machine alone")
    how = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
    try:
        with _own_signals():
            ray.init(address=found or LOCAL, **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        which = f"join the Ray cluster at {found}" if found else "start Ray"
        raise DafuseError(f"cannot {which}: {first_line(error)}") from None
    if found is not None:
        processors = counted(int(ray.cluster_resources().get("CPU", 0)), "processor")
        progress.say(f"joined the Ray cluster at {found}: {processors}")


def _require_known_form(address: str, where: str, known: str) -> None:
    if "://" in address:
        raise DafuseError(
            f"{where} {address}: start dafuse on a machine of the cluster, and give HOST:PORT, "
            "as ray start shows it"
        )
    found = HOST_AND_PORT.fullmatch(address)
    if address != AUTO and not (found and 0 < int(found["port"]) < 2**16):
        raise DafuseError(f"{where} takes {known} as ray start shows it, not {address!r}")


def _named() -> str:
    """Return what the environment says: an address, `local`, or `auto` if it says nothing."""
    return os.environ.get(VARIABLE) or AUTO


def meant(address: str) -> str | None:
    """Return the address of the cluster to join; None: one of this machine alone is started."""
    named = _named() if address == AUTO else address
    if named == LOCAL:
        return None
    return _running() if named == AUTO else named


def _running() -> str | None:
    """Return the address of a cluster that runs here; a killed one leaves its address behind."""
    from ray._private.services import find_bootstrap_address  # as ray.init() does

    found = find_bootstrap_address(None)
    with suppress(OSError):
        if found:
            _reach(found)
            return str(found)
    return None


def _require_ray(address: str, asked: str) -> None:
    """Refuse in bounded time what does not answer: Ray itself tries again for minutes."""
    by_variable = asked == AUTO and _named() == address
    named = f" ({VARIABLE})" if by_variable else ""
    alone = f"set {VARIABLE}={LOCAL}" if by_variable else f"say {OPTION} alone"
    try:
        _reach(address)
    except OSError as error:
        why = error.strerror or str(error)
        raise DafuseError(
            f"no Ray cluster can be reached at {address}{named} ({why.lower()}): start one with "
            f"ray start --head, or {alone} to use this machine"
        ) from None
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        subprocess.run(ask, capture_output=True, timeout=SAYS_RAY, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        raise DafuseError(
            f"what listens at {address}{named} does not answer as a Ray cluster: give the address "
            "that ray start shows, and have the same version of ray here and there"
        ) from None


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()


@contextmanager
def _raylets_unread() -> Iterator[None]:
    """Let Ray keep its account of a node that went to itself, where it is imported here."""
    variable, pattern = NODE_WENT
    own = os.environ.get(variable)
    os.environ[variable] = f"{own}|{pattern}" if own else pattern
    try:
        yield
    finally:
        os.environ.pop(variable)
        if own is not None:
            os.environ[variable] = own


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the way in which this program treats SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def why_of_ray(ray: Any, error: BaseException) -> str:
    """Say in a line why a Ray task failed."""
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
    if isinstance(error, (*lost, ray.exceptions.OutOfMemoryError)):
        return KILLED
    told = getattr(error, "cause", None) or error  # a task's error has the error in it
    if isinstance(told, DafuseError):
        return str(told)
    return f"{type(told).__name__}: {first_line(told)}"

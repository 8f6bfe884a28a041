"""`dafuse serve MODEL`: a model behind HTTP, with a page to try it and to teach it."""

import ctypes
import logging
import os
import secrets
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from dafuse.backbones.extractor import available_processors
from dafuse.commands.open_model import (
    AS_USUAL,
    BackboneName,
    MethodName,
    NetworkOptions,
    is_exported,
    open_exported,
    open_or_create,
)
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.server.security import Access, Limits, as_option, is_local

if TYPE_CHECKING:
    from dafuse.product.server.batching import Served

M_ARENA_MAX = -8  # of glibc's malloc.h
USUAL = Limits()
Bounds = Annotated[Limits, Parameter(name="*", name_transform=as_option)]
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # every address of this machine, and one to go to


def serve(
    model: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    open: bool = False,
    allow_learn: bool = False,
    workers: int = 1,
    token: str | None = None,
    backbone: BackboneName = None,
    method: MethodName = None,
    limits: Bounds = USUAL,
    network: NetworkOptions = AS_USUAL,
) -> None:
    """Serve a model: a page to try it in the browser, and an API (see /docs).

    With --allow-learn it can be taught there, too. Images are held in memory only. A model that is
    changed meanwhile, by another process or as a new file, is taken up without losing a request.

    Args:
        model: the model's folder, which --allow-learn makes if it is not there; or an .onnx file
            of dafuse export
        host: address to listen at
        port: 0 takes a free one
        open: open the page in the browser
        allow_learn: whoever has the token may teach, forget, rename, undo and export
        workers: processes that answer; they share the processors and the address, and one that is
            lost is started again. Limits hold for each of them. Not with --allow-learn
        token: needed to teach and, from other machines, for everything; better given as
            $DAFUSE_TOKEN, which other users cannot see; one is made and printed if left out
    """
    exported = is_exported(model)
    if exported and (allow_learn or backbone or method):
        raise DafuseError(
            f"{model} is an exported file, which learns no more: serve the model's "
            "folder to teach it, or leave out --allow-learn, --backbone and --method"
        )
    if not exported:
        _require_servable(ModelFolder(model), allow_learn)
    if workers != 1:
        network = _shared_out(network, workers, allow_learn)
    prepare_process()
    from dafuse.product.server.app import create_app
    from dafuse.product.server.connections import Server

    given = token or os.environ.get("DAFUSE_TOKEN") or None
    access = _access(host, given, allow_learn)
    listening = listen(host, port)  # before the network is loaded, which takes time
    served = open_served(model, network, backbone=backbone, method=method)
    name = Path(model).expanduser().resolve().name
    known = f"{len(served.classes)} classes" if served.classes else "nothing learned yet"
    address = _address(host, listening)
    known += f", {workers} workers" if workers > 1 else ""
    print(f"serving {model} ({known}) at {address}; Ctrl-C ends it", flush=True)
    if access.token != given:
        print(f"to teach it, open {address}/#token={access.token}", flush=True)
    if open:
        _open(_address(ANY.get(host, host), listening), access)
    if workers > 1:
        from dafuse.commands.serve_workers import Opening, run_workers

        del served  # each worker opens its own
        run_workers(Opening(model, network, access, limits, name), listening, workers)
        print("stopped", flush=True)
        return
    app = create_app(served, access, limits, learn=allow_learn, name=name)
    # uvicorn takes both signals and raises them again, for the handlers before, when it has stopped
    with suppress(KeyboardInterrupt):
        Server(app).run(sockets=[listening])
    lessons = app.state.service.lessons
    ended = lessons is None or lessons.stop(0)
    lost = lessons.lost() if lessons else ""
    print(f"stopped: {lost}" if lost else "stopped", flush=True)
    if not ended:
        # A step of it takes longer than anybody waits, and Python would crash on tearing down what
        # it computes with. The model's folder is whole at any moment.
        os._exit(0)


def open_served(model: str, network: NetworkOptions, **new: Any) -> "Served":
    """Open a model's folder, or an exported file, which is followed when it changes."""
    if not is_exported(model):
        return open_or_create(model, network, **new)
    from dafuse.product.server.followed import FollowedFile

    return FollowedFile(model, partial(open_exported, model, network))


def prepare_process() -> None:
    """Settle what holds for a process that serves: its memory, and what it says."""
    _share_one_heap()
    log = logging.getLogger("dafuse.server")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False


def _shared_out(network: NetworkOptions, workers: int, allow_learn: bool) -> NetworkOptions:
    """Return how each worker opens the model: with its share of the processors."""
    from dafuse.commands.serve_workers import require_number

    processors = available_processors()
    require_number(workers, processors)
    if allow_learn:
        raise DafuseError(
            "a model is taught in one process: leave out --workers or --allow-learn; workers take "
            "up what dafuse learn, or a server of its own with --allow-learn, teaches the model"
        )
    if workers > processors:
        print(
            f"{workers} workers share {processors} processors: more than one for each answers "
            "no more requests",
            file=sys.stderr,
        )
    return replace(network, threads=network.threads or max(1, processors // workers))


def _share_one_heap() -> None:
    """Let all threads allocate from one heap, so that memory stays flat.

    By default glibc gives threads heaps of their own, and each keeps what was once in use: the
    server grew from 195 to 319 MB within 100,000 requests. With one heap it stays at 196 MB.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _require_servable(folder: ModelFolder, allow_learn: bool) -> None:
    """Refuse what cannot be served, before anything heavy is imported."""
    if not allow_learn:
        folder.require()
    elif not folder.exists():
        folder.require_claimable()


def _access(host: str, token: str | None, allow_learn: bool) -> Access:
    local = is_local(host)
    if token is None and not local:
        raise DafuseError(
            f"others can reach {host}: give a token with --token or $DAFUSE_TOKEN, "
            "or serve this machine only with --host 127.0.0.1"
        )
    if token is None and allow_learn:
        token = secrets.token_urlsafe(18)
    return Access(token, everywhere=not local)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address and sends small answers at once."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DafuseError(
            f"cannot listen at {host}, port {port}: {reason}; choose another with --port"
        ) from None
    # for all connections it accepts: else answers on one that stays open wait 40 ms
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _address(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _open(address: str, access: Access) -> None:
    """The page, which takes the token from the part of its address that is never sent."""
    page = f"{address}/#token={quote(access.token, safe='')}" if access.token else f"{address}/"

    def show() -> None:
        if not webbrowser.open(page):
            print(f"no browser could be opened here: open {address} yourself", flush=True)

    # in a thread: some browsers are waited for, and the socket answers once the server runs
    threading.Thread(target=show, daemon=True).start()

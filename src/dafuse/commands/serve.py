"""`dafuse serve MODEL`: a model behind HTTP, with a page to try it and to teach it."""

import argparse
import ctypes
import os
import secrets
import socket
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from dafuse.commands.open_model import (
    BACKBONE,
    add_network_options,
    is_exported,
    open_model,
    open_or_create,
)
from dafuse.commands.parsing import Parser
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.taught.table import DEFAULT, METHODS

if TYPE_CHECKING:
    from dafuse.product.server.security import Access, Limits

M_ARENA_MAX = -8  # of glibc's malloc.h
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # every address of this machine, and one to go to


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    _require_servable(options)
    _share_one_heap()
    from dafuse.product.server.app import create_app
    from dafuse.product.server.connections import Server

    access, limits = _access(options), _limits(options)
    listening = listen(options.host, options.port)  # before the network is loaded, which takes time
    exported = is_exported(options.model)
    served = open_model(options) if exported else open_or_create(options)
    name = Path(options.model).expanduser().resolve().name
    app = create_app(served, access, limits, learn=options.allow_learn, name=name)
    _announce(options, access, listening, served.classes)
    if options.open:
        _open(_address(ANY.get(options.host, options.host), listening), access)
    # uvicorn takes both signals and raises them again, for the handlers before, when it has stopped
    with suppress(KeyboardInterrupt):
        Server(app).run(sockets=[listening])
    lessons = app.state.service.lessons
    ended = lessons is None or lessons.stop(0)
    lost = lessons.lost() if lessons else ""
    print(f"stopped: {lost}" if lost else "stopped", flush=True)
    if not ended:
        # A step of it takes longer than anybody waits, and Python would crash on tearing down what
        # it computes with. The model's folder bears this at any moment.
        os._exit(0)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="dafuse serve",
        description="Serve a model: a page to try it in the browser, and an API (see /docs). "
        "With --allow-learn it can be taught there, too. Pictures are held in memory only.",
    )
    parser.add_argument(
        "model",
        help="the model's folder, which with --allow-learn may be yet to come; or an .onnx file "
        "of dafuse export",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (8000)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--allow-learn",
        action="store_true",
        help="whoever has the token may teach, forget, rename, undo and export",
    )
    parser.add_argument(
        "--token",
        help="needed to teach and, from other machines, for everything; better given as "
        "$DAFUSE_TOKEN, which other users cannot see (default: one is made and printed)",
    )
    parser.add_argument("--backbone", help=f"of a new model: {BACKBONE}")
    parser.add_argument(
        "--method",
        metavar="NAME",
        help=f"of a new model (default: {DEFAULT}): {', '.join(METHODS)}",
    )
    parser.add_argument("--max-body-mb", type=float, help="megabytes of a request (32)")
    parser.add_argument("--max-files", type=int, help="pictures in a request (64)")
    parser.add_argument("--max-pixels", type=int, help="pixels of a picture (what 1 GB can decode)")
    parser.add_argument("--max-staged", type=int, help="pictures that wait to be learned (500)")
    parser.add_argument("--queue", type=int, help="pictures that wait to be predicted (256)")
    add_network_options(parser)
    return parser.parse_args(arguments)


def _share_one_heap() -> None:
    """Let all threads allocate from one heap, so that memory stays flat.

    By default glibc gives threads heaps of their own, and each keeps what was once in use: the
    server grew from 195 to 319 MB within 100,000 requests. With one heap it stays at 196 MB.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _require_servable(options: argparse.Namespace) -> None:
    """Before anything heavy is imported."""
    if is_exported(options.model):
        if options.allow_learn or options.backbone or options.method:
            raise DafuseError(
                f"{options.model} is an exported file, which learns no more: serve the model's "
                "folder to teach it, or leave out --allow-learn, --backbone and --method"
            )
        return
    folder = ModelFolder(options.model)
    if not options.allow_learn:
        folder.require()
    elif not folder.exists():
        folder.require_claimable()


def _access(options: argparse.Namespace) -> "Access":
    from dafuse.product.server.security import Access, is_local

    local = is_local(options.host)
    token = options.token or os.environ.get("DAFUSE_TOKEN") or None
    if token is None and not local:
        raise DafuseError(
            f"others can reach {options.host}: give a token with --token or $DAFUSE_TOKEN, "
            "or serve this machine only with --host 127.0.0.1"
        )
    if token is None and options.allow_learn:
        token = secrets.token_urlsafe(18)
    return Access(token, everywhere=not local)


def _limits(options: argparse.Namespace) -> "Limits":
    from dafuse.product.server.security import Limits

    given = {
        "body_mb": options.max_body_mb,
        "files": options.max_files,
        "pixels": options.max_pixels,
        "staged": options.max_staged,
        "queue": options.queue,
    }
    return Limits(**{name: value for name, value in given.items() if value is not None})


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address and holds no small answer back."""
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


def _announce(
    options: argparse.Namespace,
    access: "Access",
    listening: socket.socket,
    classes: list[str],
) -> None:
    address = _address(options.host, listening)
    known = f"{len(classes)} classes" if classes else "nothing learned yet"
    print(f"serving {options.model} ({known}) at {address}; Ctrl-C ends it", flush=True)
    if access.token is not None and not (options.token or os.environ.get("DAFUSE_TOKEN")):
        print(f"to teach it, open {address}/#token={access.token}", flush=True)


def _address(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _open(address: str, access: "Access") -> None:
    """The page, which takes the token from the part of its address that is never sent."""
    page = f"{address}/#token={quote(access.token, safe='')}" if access.token else f"{address}/"

    def show() -> None:
        if not webbrowser.open(page):
            print(f"no browser could be opened here: open {address} yourself", flush=True)

    # in a thread: some browsers are waited for, and the socket answers once the server runs
    threading.Thread(target=show, daemon=True).start()

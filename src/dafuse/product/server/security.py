"""Access and limits: who may ask, by which host name, how much; a refusal is one sentence."""

import hmac
import ipaddress
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dafuse.data.formats import MOST_PIXELS
from dafuse.errors import DafuseError
from dafuse.product.server.metrics import Metrics

LEAST = 8  # characters of a token, or more
# a name or an address and perhaps a port; IPv6 stands in brackets
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:\[\]]+))(?::[0-9]*)?")
MISDIRECTED = 421
ELSEWHERE = (
    "this server is for its own machine only: ask it as localhost, 127.0.0.1 or [::1], "
    "which the Host header must name"
)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), display-capture=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refusal(Exception):
    """A request that is not served; it is answered with this status and sentence.

    Where none of its files can be read, ``skipped`` has a sentence on each.
    """

    def __init__(self, status: int, sentence: str, skipped: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.skipped = status, sentence, skipped


def overloaded() -> Refusal:
    return Refusal(503, "too many images are waiting: try again in a moment")


@dataclass(frozen=True)
class Access:
    """The token, compared in constant time, and what needs it."""

    token: str | None = None
    everywhere: bool = False  # predicting needs the token, too; else only teaching does

    def __post_init__(self) -> None:
        token = self.token
        if token is None and self.everywhere:
            raise DafuseError("what needs a token everywhere must have one")
        if token is not None and (
            len(token) < LEAST or not token.isascii() or not token.isprintable() or " " in token
        ):
            raise DafuseError(
                f"a token has {LEAST} characters or more: letters, digits and signs, no spaces"
            )

    def require(self, given: str | None) -> None:
        """Refuse a request without the token."""
        if self.token is None or not given:
            raise Refusal(401, "a token is needed: send it as Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refusal(401, "this is not the server's token")


def is_local(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def as_option(limit: str) -> str:
    """Return how a limit is spelled as an option of `dafuse serve`."""
    return limit if limit == "queue" else f"max-{limit.replace('_', '-')}"


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of the images that wait.

    Args:
        body_mb: megabytes of a request
        files: images in a request
        pixels: pixels of an image; at most what its kind may have
        queue: images that wait to be predicted
        staged: images that wait to be learned
    """

    body_mb: float = 32
    files: int = 64
    pixels: int = MOST_PIXELS
    queue: int = 256
    staged: int = 500

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise DafuseError(f"--{as_option(field.name)} must be a number above 0")
        if self.queue < self.files:
            raise DafuseError(
                f"a queue of {self.queue} has no place for the {self.files} files that a request "
                "may have: raise the one or lower the other"
            )

    @property
    def body(self) -> int:
        """Bytes of one request."""
        return int(self.body_mb * 2**20)

    @property
    def arriving(self) -> int:
        """Bytes of all requests together, while they are read or wait to be predicted."""
        return 8 * self.body


class Memory:
    """Bytes of uploads that are held at this moment, over all requests."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes bytes for one request; the end of the block gives them back."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self.most:
                raise overloaded()
            self.held += count
            taken += count

        try:
            yield take
        finally:
            self.held -= taken


class LocalHosts:
    """A guard that refuses requests whose Host header names another machine, or none.

    A page from elsewhere can have its own name lead to 127.0.0.1 (DNS rebinding); the browser then
    lets it read what this server answers. The name stays in the Host header, which gives it away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] != "lifespan" and not names_this_machine(Headers(scope=scope)):
            app = JSONResponse({"error": ELSEWHERE}, MISDIRECTED)
        await app(scope, receive, send)


def names_this_machine(headers: Headers) -> bool:
    hosts = headers.getlist("host")
    found = HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
    return found is not None and is_local(found[1] or found[2])


class Envelope:
    """A layer that gives every answer headers for a safe browser, and counts requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            # by template and not by path, for anybody can make up paths
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count("requests_total", route=route, status=str(status))
            seconds = time.perf_counter() - start
            self._metrics.count("request_seconds_total", seconds, route=route)

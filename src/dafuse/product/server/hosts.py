"""By which names a server of this machine alone is asked.

A page from elsewhere can have its own name lead to 127.0.0.1 (DNS rebinding); the browser then
lets it read what this server answers. The name stays in the Host header, which gives it away.
"""

import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dafuse.product.server.access import is_local

# a name or an address and perhaps a port; IPv6 stands in brackets
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:\[\]]+))(?::[0-9]*)?")
MISDIRECTED = 421
SENTENCE = (
    "this server is for its own machine only: ask it as localhost, 127.0.0.1 or [::1], "
    "which the Host header must name"
)


class LocalHosts:
    """Refuses whatever was sent to another name, and what does not say to which."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] != "lifespan" and not names_this_machine(Headers(scope=scope)):
            app = JSONResponse({"error": SENTENCE}, MISDIRECTED)
        await app(scope, receive, send)


def names_this_machine(headers: Headers) -> bool:
    hosts = headers.getlist("host")
    found = HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
    return found is not None and is_local(found[1] or found[2])

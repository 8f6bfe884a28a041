"""Connections: how many there may be, and how long the server waits for what a client has to do.

    Server(create_app(classifier)).run(sockets=[listening])

All this holds before anybody is asked for a token. uvicorn alone waits for ever for the rest of
headers, for the rest of a body that it has answered already, and for a client to take its answer.
How slowly a form may come is up to `uploads`.
"""

import asyncio
import errno
import logging
import signal
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from multiprocessing import parent_process
from socket import socket
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("dafuse.server")
LINGER = 1  # seconds that requests may take to end after Ctrl-C or SIGTERM
QUIET = 15.0  # seconds that a connection may be open without a whole request
STALLED = 60.0  # seconds in which a client must take some of its answer
MOST = 1000  # connections, where the system allows so many
BURST = 16  # connections that asyncio accepts at once, before it looks at what they are
STEP_BACK = 0.0005  # seconds for each connection that a worker has, before it takes another
STEPS = 4  # connections that count for that
OWN = 64  # files that the server may need for itself
QUEUE = 512  # connections that the system keeps until they are accepted
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # as asyncio knows them
EVERY = 60.0  # seconds between two lines that say so


def most_connections() -> int:
    """Return how many connections there may be, so that files are left for the model."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return MOST
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST
    # those of a burst are accepted in one turn of the loop, and closed three turns later
    return max(BURST, min(MOST, files - OWN - 4 * BURST))


class Server(uvicorn.Server):
    """A server of so many connections at most; default: as many as the system lets it have."""

    def __init__(self, app: ASGIApp, most: int | None = None) -> None:
        self.open = Connections(most_connections() if most is None else most)
        super().__init__(rules(app, self.open))

    def run(self, sockets: list[socket] | None = None) -> None:
        self.open.listening = sockets or []
        super().run(sockets)


def rules(app: Any, open_ones: "Connections", burst: int = BURST, **more: Any) -> uvicorn.Config:
    """Return the settings of a server, which processes may be given: all of it can be pickled.

    ``burst``: how many connections are accepted at once.
    """
    return uvicorn.Config(
        app,
        http=cast(Any, partial(Connection, open_ones)),
        ws="none",
        backlog=burst,
        log_level="error",  # what is wrong with a request is said to whoever sent it
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LINGER,
        callback_notify=open_ones.look,
        timeout_notify=0,  # as often as uvicorn looks, which is once a second
        **more,
    )


class Connections:
    """All connections that are open; where there are too many, the quietest one is closed."""

    def __init__(self, most: int, listening: Sequence[socket] = ()) -> None:
        self.most, self.listening = most, listening
        self._begun = False
        self._heard: OrderedDict[Connection, None] = OrderedDict()  # the quietest first
        self._said = -EVERY

    def __len__(self) -> int:
        return len(self._heard)

    def heard(self, connection: "Connection") -> None:
        """Note that something came from a client: its connection, or a part of a request."""
        self._heard[connection] = None
        self._heard.move_to_end(connection)
        if len(self._heard) > self.most:
            self._close_quietest()

    def let_others_accept(self) -> None:
        """Leave the next connection to a worker that has fewer, for as long as it takes to wake.

        All workers wait at one socket. Whoever wakes first would take all that come at once, and
        clients that keep their connections would be served by it alone.
        """
        if parent_process() is not None:
            time.sleep(STEP_BACK * min(len(self), STEPS))

    def lost(self, connection: "Connection") -> None:
        self._heard.pop(connection, None)

    def _close_quietest(self) -> None:
        """Close the one that the server has waited for longest.

        A whole request is never given up: where all others wait for answers, the newest goes.
        """
        quietest = next((one for one in self._heard if one.is_awaited()), None)
        if quietest is not None:
            self.lost(quietest)
            quietest.transport.abort()

    async def look(self) -> None:
        """Close the connections that have made the server wait too long."""
        if not self._begun:
            self._begin()
        parent = parent_process()
        if parent is not None and not parent.is_alive():  # nobody would ever end this worker
            signal.raise_signal(signal.SIGTERM)
        for connection in list(self._heard):
            if connection.is_overdue():
                connection.transport.abort()

    def _begin(self) -> None:
        """Do what can only be done once uvicorn listens: at its first look, right after that."""
        self._begun = True
        asyncio.get_running_loop().set_exception_handler(self.in_trouble)
        for listening in self.listening:
            listening.listen(QUEUE)  # asyncio makes it as short as a burst

    def in_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Say once in a while that connections cannot be accepted; the rest is asyncio's."""
        error = context.get("exception")
        if not (
            isinstance(error, OSError) and error.errno in NO_ROOM and "accept" in context["message"]
        ):
            loop.default_exception_handler(context)
            return
        self._close_quietest()
        if time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            log.error("no more connections can be accepted: %s", error.strerror)


class Connection(H11Protocol):
    """A connection that tells whether the server waits for the client, and since when."""

    def __init__(self, open_ones: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = open_ones
        self._idle_since = self._unsent_since = self.loop.time()
        self._unsent = 0  # bytes of answers that the client has not taken yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._open.let_others_accept()
        self._open.heard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._open.heard(self)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, but not twice where its beginning is answered already."""
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def is_awaited(self) -> bool:
        """Tell whether the client's turn is now: to ask, to send the rest, to take its answer."""
        return not self._is_answering() or self.cycle.more_body or self.flow.write_paused

    def is_overdue(self) -> bool:
        """Tell whether the client has let its turn go by, since the last calls of this."""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        if unsent:
            return now - self._unsent_since > STALLED
        return not self._is_answering() and now - self._idle_since > QUIET

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

"""Requests over plain sockets: what is sent is what is written, and no client mends it."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

PATIENCE = 30.0  # seconds after which nothing more is expected of a request
BOUNDARY = "storm"


@dataclass(frozen=True)
class Answer:
    """The server's answer; a status of 0: it closed the connection and said nothing."""

    status: int
    head: bytes = b""
    body: bytes = b""


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Address":
        where = urlsplit(url)
        return cls(where.hostname or "127.0.0.1", where.port or 80)

    def connect(self, patience: float = PATIENCE) -> socket.socket:
        opened = socket.create_connection((self.host, self.port), patience)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A request as it should be."""
    fields = {"Host": "localhost", **(headers or {})}
    if body or method in ("POST", "PUT"):
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def form(files: Sequence[tuple[str, bytes]]) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a form that has these files."""
    body = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n%b\r\n'
        % (BOUNDARY.encode(), name.encode(), content)
        for name, content in files
    )
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return kind, body + f"--{BOUNDARY}--\r\n".encode()


class Asker:
    """A client that keeps its connection, and opens another when that one is gone."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._open: socket.socket | None = None

    def ask(self, sent: bytes) -> Answer:
        """The answer. A connection that was closed meanwhile is none of the server's faults."""
        kept = self._open is not None
        answer = self._attempt(sent)
        return self._attempt(sent) if kept and answer.status == 0 else answer

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _attempt(self, sent: bytes) -> Answer:
        try:
            if self._open is None:
                self._open = self._address.connect()
            self._open.sendall(sent)
            answer = read_answer(self._open, is_head=sent.startswith(b"HEAD "))
        except ConnectionError:
            answer = Answer(0)
        if answer.status == 0 or b"connection: close" in answer.head.lower():
            self.close()
        return answer


def read_answer(opened: socket.socket, is_head: bool = False) -> Answer:
    """One answer, whole or as much as came before the connection was closed."""
    came = b""
    while b"\r\n\r\n" not in came:
        if not (piece := opened.recv(2**16)):
            return Answer(0, came)
        came += piece
    head, _, body = came.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status == 100:
        return read_answer(opened, is_head)
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    while not is_head and len(body) < int(length[1] if length else 2**62):
        if not (piece := opened.recv(2**16)):
            break
        body += piece
    return Answer(status, head, body)


def throw(address: Address, sent: bytes, patience: float) -> Answer | None:
    """Return the answer on a connection of its own; None: nothing, until patience ended."""
    with address.connect() as opened:
        try:
            with suppress(ConnectionError):  # refused in the middle; the reason may have come
                opened.sendall(sent)
            opened.settimeout(patience)
            return read_answer(opened, is_head=sent.startswith(b"HEAD "))
        except TimeoutError:
            return None
        except (ConnectionError, ValueError):
            return Answer(0)


def handles(pid: int) -> dict[str, int]:
    """Count a process's files, threads and megabytes of memory."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    return {
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "MB": int(status["VmRSS"].split()[0]) // 1024,
    }

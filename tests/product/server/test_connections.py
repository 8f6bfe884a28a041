"""Connections that do nothing, or nothing fast: they end, and nobody else has to wait for them."""

import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from dafuse.product.server import connections, uploads
from dafuse.product.server.app import create_app
from dafuse.product.server.connections import Connections, most_connections
from helpers.served_apps import Greys, files, grey, serving, wait_for

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half:"
FORM = b"Content-Type: multipart/form-data; boundary=x\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def greys() -> Greys:
    return Greys()


@pytest.fixture
def address(greys: Greys) -> Iterator[tuple[str, int]]:
    """Yield the address of a server that has room for four connections."""
    with serving(create_app(greys), most=4) as found:
        url = httpx.URL(found)
        yield url.host, url.port or 0


def connected(address: tuple[str, int], sent: bytes) -> socket.socket:
    client = socket.create_connection(address, 60)
    client.sendall(sent)
    return client


def answered(address: tuple[str, int], path: str = "/healthz") -> httpx.Response:
    return httpx.get(f"http://{address[0]}:{address[1]}{path}", timeout=60)


def is_closed(client: socket.socket) -> bool:
    """Wait until nothing comes any more."""
    try:
        while client.recv(2**16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_half_a_head_is_waited_for_in_vain_only_so_long(
    address: tuple[str, int], greys: Greys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "QUIET", 0.1)
    greys.go_on.clear()  # what the server is slow to answer is not the client's fault
    with ExitStack() as held:
        picture = httpx.Request("POST", "http://localhost/predict", files=files(grey(7)))
        body = picture.read()
        kind = picture.headers["content-type"].encode()
        head = POST + b"Content-Type: " + kind + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        asked = held.enter_context(connected(address, head + body))
        wait_for(lambda: greys.batches)
        for sent in (b"", HALF, b"\r\n"):
            assert is_closed(held.enter_context(connected(address, sent)))
        greys.go_on.set()
        assert asked.recv(2**16).startswith(b"HTTP/1.1 200")


def test_a_body_that_is_refused_already_is_not_waited_for(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "QUIET", 0.1)
    head = b"POST /learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n"
    ended = threading.Event()
    with connected(address, head) as client:
        assert client.recv(2**16).startswith(b"HTTP/1.1 403")

        def drip() -> None:
            try:
                while not ended.wait(0.02):
                    client.send(b"x")
            except OSError:
                return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert is_closed(client)
        ended.set()
        dripping.join()


def test_an_answer_that_is_not_taken_is_dropped(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED", 0.1)
    with connected(address, b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 999) as client:

        def is_dropped() -> bool:
            try:
                client.send(b"G")
            except OSError:
                return True
            return False

        wait_for(is_dropped)
    assert answered(address).status_code == 200


def test_where_there_are_too_many_the_quietest_makes_room(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        slow = [b"", HALF, POST + b"Content-Length: 999\r\n" + FORM + b"\r\n--x"]
        attackers = [held.enter_context(connected(address, sent)) for sent in 9 * slow]
        for _ in range(3):
            assert answered(address).status_code == 200
        for attacker in attackers[:-4]:
            assert is_closed(attacker)


def test_requests_that_wait_for_their_answers_are_kept(greys: Greys) -> None:
    greys.go_on.clear()
    app = create_app(greys)
    with serving(app, most=4) as url, ThreadPoolExecutor(4) as clients, ExitStack() as held:

        def ask() -> int:
            return httpx.post(f"{url}/predict", files=files(grey(7)), timeout=60).status_code

        first = clients.submit(ask)
        wait_for(lambda: greys.batches)
        others = [clients.submit(ask) for _ in range(3)]
        wait_for(lambda: "dafuse_queued_pictures 3" in app.state.service.metrics.text())
        where = httpx.URL(url)
        for _ in range(20):
            held.enter_context(connected((where.host, where.port or 0), HALF))
        greys.go_on.set()
        assert [one.result() for one in (first, *others)] == [200] * 4


@pytest.mark.parametrize("path", [b"/predict", b"/learn"])
def test_a_body_that_turns_out_to_be_no_http_is_refused_once(
    address: tuple[str, int], path: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" % path + FORM
    with connected(address, head + b"\r\n4\r\n--x\r\r\n") as client:
        if path == b"/learn":
            assert client.recv(2**16).startswith(b"HTTP/1.1 403")
        client.sendall(b"no length\r\n\r\n")
        assert is_closed(client)
    assert answered(address).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_form_may_take_long_if_it_comes_at_a_fair_rate(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 1.0)
    monkeypatch.setattr(uploads, "SLOWEST", 100)
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n'
    form, pause = head + grey(7) + bytes(200) + b"\r\n--x--\r\n", threading.Event()
    with connected(address, POST + FORM + b"Content-Length: %d\r\n\r\n" % len(form)) as client:
        for start in range(0, len(form), 25):
            client.sendall(form[start : start + 25])
            pause.wait(0.1)
        assert client.recv(2**16).startswith(b"HTTP/1.1 200")


def test_what_was_sent_in_advance_earns_no_time_for_ever(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 0.2)
    monkeypatch.setattr(uploads, "SLOWEST", 1)
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n'
    with connected(address, POST + FORM + b"Content-Length: 99999\r\n\r\n" + head) as client:
        client.sendall(bytes(50_000))
        assert client.recv(2**16).startswith(b"HTTP/1.1 408")


def test_that_none_can_be_accepted_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    full = Connections(4)
    for _ in range(3):
        full.in_trouble(
            None,  # type: ignore[arg-type]
            {
                "message": "socket.accept() out of system resource",
                "exception": OSError(errno.EMFILE, "Too many open files"),
            },
        )
    assert caplog.messages == ["no more connections can be accepted: Too many open files"]


def test_there_are_fewer_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for files_allowed, most in ((256, 128), (1024, 896), (10**6, 1000), (20, 16)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, n=files_allowed: (n, n))
        assert most_connections() == most
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert most_connections() == 1000

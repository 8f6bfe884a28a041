"""One real server, and requests by the thousand: honest ones, hostile ones, slow ones, floods.

A trial is a batch of requests. The honest ones are answered as at the start, to the letter; the
hostile ones are refused or answered, never by a 500, and change nothing; those who are slow or many
keep nobody else out. Memory, handles and threads stay as they were after the first batches.
"""

import hashlib
import json
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from faults.asking import PATIENCE, Address, Answer, Asker, form, handles, request, throw
from faults.command import Running, start
from faults.hostile import hostile
from faults.trial import Outcome, Trial
from faults.world import World

TOKEN = "token-of-the-storm"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
FILES = 256  # that the server may open
HONEST, HOSTILE = 200, 50  # requests of a seed
SLOW, FLOOD = 30, 600  # connections
CYCLE, LESSON, SLOWLY, FLOODED = 20, 2, 3, 4  # one in so many seeds has a lesson, is slow, a flood
WARM = 30  # seeds after which memory, handles and threads may not grow
EVERY = 10  # seeds between two looks at them
MAY_GROW = {"files": 8, "threads": 2, "MB": 30}
GIVEN_UP = 45.0  # seconds after which the server must have closed a connection that says nothing
UNFINISHED = 0.05  # seconds for an answer to a request that may not be whole
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half: "
STAYS_OPEN = (
    b"",
    HALF,
    b"POST /learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n",
)
WAITS = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n" + (
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x"
)
READS_NOTHING = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50


class Server:
    """Trials against a server that is started once, and again where it was lost."""

    def __init__(self, place: Path) -> None:
        world = World(place / "world")
        self._model = world.copy(world.model, "served")
        pictures = sorted(world.asked.rglob("*.png")) or sorted(world.asked.rglob("*.jpg"))
        self._pictures = [(file.name, file.read_bytes()) for file in pictures]
        self._idle: list[tuple[float, socket.socket]] = []  # connections that say nothing, since
        self._seeds, self._warm = 0, dict.fromkeys(MAY_GROW, 0)
        self._start()
        self._requests = self._honest_requests()
        self._expected = {sent: self._told(sent) for sent in self._requests}
        self._files = self._digest()

    def close(self) -> None:
        for _, opened in self._idle:
            opened.close()
        self._asker.close()
        self._running.signal(signal.SIGTERM)
        with suppress(Exception):
            self._running.wait(30)

    def trials(self, seed: int) -> Iterator[Trial]:
        random = Random(seed)
        kind = seed % CYCLE
        found: list[Trial] = []
        with ExitStack() as held:
            if kind == SLOWLY:
                found += self._slow_senders(random, seed, held)
            elif kind == FLOODED:
                found += self._flood(random, seed, held)
            found += self._batch(random, seed)
        if kind == LESSON:
            found += self._trial("a lesson, undone", seed, self._lesson())
        self._seeds += 1
        if self._seeds == WARM:
            self._warm = handles(self._running.pid)
        elif self._seeds > WARM and self._seeds % EVERY == 0:
            found.append(self._grown(seed))
        yield from found

    def _start(self) -> None:
        options = ("--port", "0", "--allow-learn", "--token", TOKEN)
        self._running: Running = start("serve", self._model, *options, before=_limited)
        end = time.monotonic() + 60
        while not (found := re.search(r"at (http://\S+);", self._running.said()[0])):
            if time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {self._running.said()}")
            time.sleep(0.05)
        self._address = Address.of(found[1])
        self._asker = Asker(self._address)
        self._said = 0  # characters on standard error that were looked at
        self._seeds = 0

    def _honest_requests(self) -> list[bytes]:
        paths = ("/healthz", "/classes", "/history", "/", "/docs", "/openapi.json")
        asked = [request("GET", path) for path in (*paths, "/page/page.js", "/nowhere", "/learn")]
        asked += [request("HEAD", "/"), request("DELETE", "/classes/cat"), request("POST", "/undo")]
        asked += [request("GET", "/classes", BEARER)] * 3
        for count in (1, len(self._pictures)):
            asked.append(request("POST", "/predict?top=3", *form(self._pictures[:count])))
        return asked

    def _told(self, sent: bytes) -> tuple[int, Any]:
        """The status and what stands in the body; shares are rounded."""
        answer = self._asker.ask(sent)
        if not answer.body.startswith(b"{"):
            return answer.status, answer.body
        return answer.status, json.loads(
            answer.body, parse_float=lambda text: round(float(text), 4)
        )

    def _batch(self, random: Random, seed: int) -> Iterator[Trial]:
        """Honest requests and hostile ones in between, and whether anything changed."""
        turns = [True] * HONEST + [False] * HOSTILE
        random.shuffle(turns)
        honest: list[tuple[Outcome, str]] = []
        refused: list[tuple[Outcome, str]] = []
        for is_honest in turns:
            try:
                if is_honest:
                    honest += self._ask(random)
                else:
                    refused += self._provoke(random)
            except OSError as error:
                (honest if is_honest else refused).append((Outcome.LOST, f"no answer: {error!r}"))
                break
        refused += self._after()
        yield from self._trial("honest requests", seed, honest, HONEST)
        yield from self._trial("hostile requests", seed, refused, HOSTILE)

    def _trial(self, what: str, seed: int, failures: Any, count: int = 1) -> Iterator[Trial]:
        """The things that were tried: one trial for all that survived, and one for each failure."""
        failures = list(failures)
        if count > len(failures):
            yield Trial(what, seed, count=count - len(failures))
        for outcome, detail in failures:
            yield Trial(what, seed, outcome, detail)

    def _ask(self, random: Random) -> Iterator[tuple[Outcome, str]]:
        # a picture takes as long as ten others
        sent = random.choices(self._requests, [10] * (len(self._requests) - 2) + [4, 1])[0]
        line = sent.partition(b"\r\n")[0].decode()
        found = self._told(sent)
        if found[0] == 500:
            yield Outcome.TRACEBACK, f"{line}: a 500"
        elif found[0] == 0:
            yield Outcome.LOST, f"{line}: no answer"
        elif found != self._expected[sent]:
            yield Outcome.WRONG, f"{line}: {found}, and {self._expected[sent]} at the start"

    def _provoke(self, random: Random) -> Iterator[tuple[Outcome, str]]:
        thrown = hostile(random, TOKEN)
        patience = PATIENCE if thrown.is_whole else UNFINISHED
        answer = throw(self._address, thrown.sent, patience)
        yield from _judged(thrown.sent, answer, thrown.must_be_refused)
        if answer is None and thrown.is_whole:
            yield Outcome.LOST, f"{thrown.sent[:300]!r}: no answer in {patience:.0f} s"

    def _after(self) -> Iterator[tuple[Outcome, str]]:
        """Check the process, its standard error and the model after a batch."""
        error = self._running.said()[1][self._said :]
        self._said += len(error)
        if error:
            kind = Outcome.TRACEBACK if "Traceback" in error else Outcome.WRONG
            yield kind, f"on standard error: {error[-2000:]!r}"
        try:
            counted = self._asker.ask(request("GET", "/metrics"))
            if b'status="5' in counted.body.replace(b'status="503"', b""):
                yield Outcome.TRACEBACK, "an answer of 500 or more was counted"
            for sent, expected in self._expected.items():
                if self._told(sent) != expected and counted.status:
                    yield Outcome.WRONG, f"{sent[:80]!r} is answered otherwise"
        except TimeoutError:
            counted = Answer(0)
        if counted.status == 0:
            yield Outcome.LOST, f"the server is gone: {self._running.said()[1][-2000:]!r}"
            self._running.signal(signal.SIGKILL)
            self._start()
        if self._digest() != self._files:
            self._files = self._digest()
            yield Outcome.WRONG, "the model's files changed"
        yield from self._patience()

    def _digest(self) -> str:
        """A hash of all files of the model."""
        found = hashlib.sha256()
        for file in sorted(self._model.rglob("*")):
            if file.is_file():
                found.update(str(file).encode() + file.read_bytes())
        return found.hexdigest()

    def _slow_senders(self, random: Random, seed: int, held: ExitStack) -> Iterator[Trial]:
        """Connections that stay half open while a batch is asked, some for long after it."""
        failures: list[tuple[Outcome, str]] = []
        for _ in range(SLOW):
            sent = random.choice((*STAYS_OPEN, WAITS, READS_NOTHING))
            opened = self._address.connect()
            opened.sendall(sent)
            if sent in STAYS_OPEN and random.random() < 0.3:
                self._idle.append((time.monotonic(), opened))
            else:
                held.enter_context(opened)
        failures += self._answered(1, f"beside {SLOW} slow senders")
        yield from self._trial("slow senders", seed, failures, SLOW)

    def _patience(self) -> Iterator[tuple[Outcome, str]]:
        """Check that connections that say nothing were closed in the end."""
        waiting = []
        for since, opened in self._idle:
            if time.monotonic() - since < GIVEN_UP:
                waiting.append((since, opened))
                continue
            with opened:
                if not _is_closed(opened):
                    yield Outcome.WRONG, f"a silent connection is open after {GIVEN_UP:.0f} s"
        self._idle = waiting

    def _flood(self, random: Random, seed: int, held: ExitStack) -> Iterator[Trial]:
        """Open more connections at once than the server has files."""
        failures: list[tuple[Outcome, str]] = []
        try:
            for _ in range(FLOOD):
                opened = held.enter_context(self._address.connect())
                with suppress(ConnectionError):  # closed already, to make room
                    opened.sendall(random.choice((*STAYS_OPEN, WAITS)))
        except TimeoutError:
            failures.append((Outcome.LOST, f"no connection in {PATIENCE:.0f} s"))
        failures += self._answered(10, "in a flood")
        yield from self._trial("floods", seed, failures, FLOOD)

    def _answered(self, times: int, when: str) -> Iterator[tuple[Outcome, str]]:
        """Check that new connections are answered."""
        for _ in range(times):
            answer = throw(self._address, request("GET", "/healthz"), PATIENCE)
            if answer is None or answer.status != 200:
                yield Outcome.LOST, f"not answered {when}: {answer}"
                return

    def _lesson(self) -> Iterator[tuple[Outcome, str]]:
        """Teach a class by honest requests, and take it back: all is as it was."""
        name = "taught by the storm"
        sent = request("POST", f"/classes/{quote(name)}/images", *_bearing(self._pictures))
        if (staged := self._asker.ask(sent)).status != 201:
            yield Outcome.WRONG, f"pictures were refused: {staged}"
            return
        self._asker.ask(request("POST", "/learn", BEARER))
        end = time.monotonic() + 60
        while b'"running"' in (job := self._asker.ask(request("GET", "/learn", BEARER))).body:
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        if name not in json.loads(self._asker.ask(request("GET", "/classes")).body)["classes"]:
            yield Outcome.LOST, f"a lesson was not learned: {job.body!r}"
        elif (undone := self._asker.ask(request("POST", "/undo", BEARER))).status != 200:
            yield Outcome.WRONG, f"a lesson was not undone: {undone}"
        self._files = self._digest()
        yield from self._after()

    def _grown(self, seed: int) -> Trial:
        """Tell whether the server holds more than when it was warm, beside what is kept open."""
        what, now = "memory, handles and threads", handles(self._running.pid)
        may = {**MAY_GROW, "files": MAY_GROW["files"] + len(self._idle)}
        detail = ", ".join(f"{now[one]} {one}, {self._warm[one]} when warm" for one in MAY_GROW)
        if any(now[one] > self._warm[one] + more for one, more in may.items()):
            return Trial(what, seed, Outcome.WRONG, detail)
        return Trial(what, seed, detail=detail)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def _judged(
    sent: bytes, answer: Answer | None, must_be_refused: bool
) -> Iterator[tuple[Outcome, str]]:
    """Say what is wrong with an answer to a hostile request."""
    if answer is None or answer.status == 0:
        return
    said = f"{sent[:300]!r}: {answer.status} {answer.body[:200]!r}"
    if answer.status >= 500 and answer.status != 503:
        yield Outcome.TRACEBACK, said
    elif must_be_refused and answer.status < 400:
        yield Outcome.WRONG, said


def _bearing(files: list[tuple[str, bytes]]) -> tuple[dict[str, str], bytes]:
    kind, body = form(files)
    return {**kind, **BEARER}, body


def _is_closed(opened: socket.socket) -> bool:
    """Tell whether the other side has closed it; what it has said before that does not count."""
    opened.settimeout(0.2)
    try:
        while opened.recv(2**16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True

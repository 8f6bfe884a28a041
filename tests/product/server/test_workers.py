"""`dafuse serve --workers 2`: processes that share the load, come back, leave nothing behind."""

import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dafuse.commands.open_model import NetworkOptions
from dafuse.commands.serve_workers import Opening
from dafuse.product.classifier import Classifier
from dafuse.product.server.security import Access, Limits
from helpers.product_models import pictures
from helpers.served_apps import BEARER, TOKEN, client, files, png, wait_for
from helpers.served_processes import address, process

CLIENTS = 4
SENT = files(png(pictures({0: 1}, seed=3)[0][0]))
KNOWS = [{"class 0", "class 1"}, {"class 2", "class 3", "class 4"}]


def workers_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers: the processes that uvicorn spawned, without the tracker of multiprocessing."""
    return [one for one in psutil.Process(run.pid).children() if is_worker(one)]


def is_worker(one: psutil.Process) -> bool:
    try:
        return any("spawn_main" in word for word in one.cmdline())
    except psutil.Error:  # it has ended
        return False


@contextmanager
def two_workers(model: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with process(model, "--workers", "2", **environment) as run:
        url = address(run)
        wait_for(lambda: answering(url, workers_of(run)))
        yield run, url


def answering(url: str, workers: list[psutil.Process]) -> bool:
    """Whether two workers listen: each has a connection, where many are open at once."""
    with ExitStack() as stack:
        for _ in range(8):
            found = stack.enter_context(httpx.Client(base_url=url, timeout=60))
            found.get("/healthz")
        return len(workers) == 2 and all(count(one) for one in workers)


def count(worker: psutil.Process) -> int:
    """How many connections it has."""
    try:
        found = worker.net_connections(kind="tcp")
    except psutil.Error:  # it has ended
        return 0
    return sum(one.status == psutil.CONN_ESTABLISHED for one in found)


class Load:
    """Clients that ask without pause, each on a connection of its own, until the block ends."""

    def __init__(self, url: str) -> None:
        self.url, self.ended = url, threading.Event()
        self.statuses: Counter[int] = Counter()
        self.by: Counter[int] = Counter()  # the answers of each model
        self.broken: list[httpx.TransportError] = []
        self.wrong: list[Any] = []

    def __enter__(self) -> "Load":
        self.threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for one in self.threads:
            one.join()

    def more(self, answers: int = 20) -> None:
        """Wait for so many more answers."""
        enough = self.statuses.total() + answers
        wait_for(lambda: self.statuses.total() >= enough)

    def _ask(self) -> None:
        while not self.ended.is_set():
            with httpx.Client(base_url=self.url, timeout=120) as client:
                try:
                    while not self.ended.is_set():
                        self._look(client.post("/predict", params={"top": 9}, files=SENT))
                except httpx.TransportError as error:  # its connection is gone: it opens another
                    self.broken.append(error)

    def _look(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        top = answer.json()["predictions"][0]["top"] if answer.is_success else []
        names = {one["name"] for one in top}
        if names in KNOWS and sum(one["probability"] for one in top) == pytest.approx(1, abs=1e-5):
            self.by[KNOWS.index(names)] += 1
        else:
            self.wrong.append(answer.text)


def ended(run: subprocess.Popen[str], by: signal.Signals) -> tuple[str, str]:
    """What it said until it ended, on both streams; none of its processes may be left."""
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(by)
    out, err = run.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    return out, err


def metric(url: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", httpx.get(f"{url}/metrics").text, re.M)
    return float(found[1]) if found else 0.0


def test_two_workers_answer_count_together_and_leave_nothing_behind(
    file: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with two_workers(file, TMPDIR=str(temporary)) as (run, url):
        with Load(url) as load:
            load.more()
        assert metric(url, "dafuse_predicted_pictures_total") == load.statuses.total()
        assert metric(url, "dafuse_classes") == 2  # and not 4
        one = workers_of(run)[0]
        one.kill()
        wait_for(lambda: answering(url, [two for two in workers_of(run) if two != one]))
        assert metric(url, "dafuse_predicted_pictures_total") == load.statuses.total()
        out, err = ended(run, signal.SIGINT)
    assert (load.wrong, load.broken, set(load.statuses)) == ([], [], {200})
    assert out == "stopped\n"
    assert err == f"worker {one.pid} was lost; another takes its place\n"
    assert list(temporary.glob("dafuse-*")) == []


def test_a_rolling_change_of_the_model_under_load_loses_no_request(
    file: Path, made: list[Path]
) -> None:
    with two_workers(file) as (run, url):
        with Load(url) as load:
            load.more()
            for change in (1, 0, 1):
                before = load.by[change]
                shutil.copy(made[change], file.with_name("new"))
                os.replace(file.with_name("new"), file)
                wait_for(lambda before=before, change=change: load.by[change] >= before + 20)
        ended(run, signal.SIGTERM)
    assert (load.wrong, load.broken) == ([], [])
    assert set(load.statuses) == {200}
    assert min(load.by.values()) >= 40


def test_a_killed_worker_costs_its_own_requests_and_comes_back(file: Path) -> None:
    with two_workers(file) as (run, url):
        before = workers_of(run)
        with Load(url) as load:
            load.more()
            before[0].kill()
            wait_for(lambda: len(set(workers_of(run)) - {before[0]}) == 2)
            load.more()
        assert before[1] in workers_of(run)
        ended(run, signal.SIGTERM)
    assert (load.wrong, set(load.statuses)) == ([], {200})
    assert len(load.broken) <= CLIENTS  # each lost what it had asked that worker, and went on


def test_a_hangup_renews_all_workers(file: Path) -> None:
    with two_workers(file) as (run, url):
        before = set(workers_of(run))
        run.send_signal(signal.SIGHUP)
        wait_for(lambda: len(workers_of(run)) == 2 and not before & set(workers_of(run)))
        assert wait_for(lambda: answering(url, workers_of(run)))
        _, err = ended(run, signal.SIGTERM)
    assert err == ""


def test_workers_end_when_the_process_that_started_them_is_killed(file: Path) -> None:
    with two_workers(file) as (run, _):
        family = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive


def test_workers_take_up_what_a_models_folder_was_taught(made: list[Path], tmp_path: Path) -> None:
    folder = shutil.copytree(made[0].with_name("0"), tmp_path / "model")
    with two_workers(folder) as (run, url):
        Classifier.open(folder, device="cpu").learn(*pictures({5: 2}))
        with ExitStack() as stack:
            for _ in range(8):  # new connections, of both workers
                asked = stack.enter_context(httpx.Client(base_url=url, timeout=60))
                answer = asked.post("/predict?top=9", files=SENT).json()
                names = {one["name"] for one in answer["predictions"][0]["top"]}
                assert names == {"class 0", "class 1", "class 5"}
        ended(run, signal.SIGTERM)


def test_where_no_worker_can_start_it_ends_and_says_so(file: Path) -> None:
    with process(file, "--workers", "2") as run:
        assert run.stdout is not None
        assert "2 workers" in run.stdout.readline()
        file.unlink()  # before the workers open it
        _, err = run.communicate(timeout=120)
    assert run.returncode == 2
    *lines, last = err.splitlines()
    assert f"a worker cannot open the model: there is no file {file}" in lines[0]
    assert last == "dafuse: no worker stays alive: leave out --workers to see why"


def test_a_worker_gets_the_token_and_the_limits(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafuse.commands.serve.prepare_process", lambda: None)
    access, limits = Access(TOKEN, everywhere=True), Limits(files=3)
    opening = Opening(str(file), NetworkOptions(threads=1), access, limits, "pets")
    sent = pickle.loads(pickle.dumps(opening))  # as it is sent to a new process
    with client(sent()) as found:
        assert found.get("/classes").status_code == 401
        knows = found.get("/classes", headers=BEARER).json()
    assert (knows["model"], knows["limits"]["files"]) == ("pets", 3)


def test_connections_that_come_at_once_are_shared_out(file: Path) -> None:
    """Whoever keeps its connection stays with its worker: one of them must not get all."""
    with two_workers(file) as (run, url):
        where, fewest = httpx.URL(url), 0
        wait_for(lambda: not any(map(count, workers_of(run))))
        for _ in range(4):
            with ExitStack() as stack:
                for _ in range(8):
                    stack.enter_context(socket.create_connection((where.host, where.port or 0)))
                wait_for(lambda: sum(map(count, workers_of(run))) == 8)
                fewest += min(count(one) for one in workers_of(run))
            wait_for(lambda: not any(map(count, workers_of(run))))
        ended(run, signal.SIGTERM)
    assert fewest >= 6  # of 32; without that it was 1

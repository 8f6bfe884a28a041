"""The connection to Ray: what is typed, what can be joined, and what is said of the rest."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dafuse import cluster
from dafuse.cluster import joined, require_there, spelled_out
from dafuse.errors import DafuseError
from dafuse.progress import Progress
from helpers.ray_clusters import ray_cluster


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--cluster"], ["--cluster=auto"]),
        (["--cluster", "auto"], ["--cluster=auto"]),
        (["--cluster", "host:6379", "more"], ["--cluster=host:6379", "more"]),
        (["--cluster", "[::1]:6379"], ["--cluster=[::1]:6379"]),
        (["--cluster=host:6379"], ["--cluster=host:6379"]),
        (["--cluster", "ray://host:1"], ["--cluster=ray://host:1"]),
        (["--cluster", "recipe", "--seed", "1"], ["--cluster=auto", "recipe", "--seed", "1"]),
        (["--cluster", "C:/photos"], ["--cluster=auto", "C:/photos"]),
        (["--cluster", "--seed", "1"], ["--cluster=auto", "--seed", "1"]),
        (["--seed", "1", "--cluster"], ["--seed", "1", "--cluster=auto"]),
        (["--cluster", "--", "--cluster"], ["--cluster=auto", "--", "--cluster"]),
    ],
)
def test_an_address_is_told_from_what_follows(typed: list[str], read: list[str]) -> None:
    assert spelled_out(typed) == read


@pytest.mark.parametrize("address", ["host", "host:0", "host:99999", "ho st:1", ""])
def test_an_address_of_no_form_is_refused(address: str) -> None:
    with pytest.raises(DafuseError, match="takes nothing, auto or HOST:PORT"), joined(address):
        pass


def test_a_client_address_is_refused() -> None:
    with pytest.raises(DafuseError, match="on a machine of the cluster"), joined("ray://h:10001"):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DafuseError, match=r"pip install 'dafuse\[ray\]'"), joined("auto"):
        pass


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    unreachable = pytest.raises(DafuseError, match=f"can be reached at 127.0.0.2:{port} .*refused")
    with unreachable, joined(f"127.0.0.2:{port}"):
        pass


def test_what_is_not_ray_is_refused_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SAYS_RAY", 2.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", 0))
        silent.listen()
        address = f"127.0.0.2:{silent.getsockname()[1]}"
        with pytest.raises(DafuseError, match="does not answer as a Ray cluster"), joined(address):
            pass


def found_here(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda _: address)


def test_an_address_that_a_killed_cluster_left_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found_here(monkeypatch, "127.0.0.2:1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster.meant("auto") is None


@pytest.mark.parametrize("named", ["", "auto"])
def test_the_cluster_that_runs_here_is_meant_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listening:
        address = f"127.0.0.2:{listening.getsockname()[1]}"
        found_here(monkeypatch, address)
        monkeypatch.setenv("RAY_ADDRESS", named)
        assert cluster.meant("auto") == address
        monkeypatch.setenv("RAY_ADDRESS", "local")
        assert cluster.meant("auto") is None
        assert cluster.meant("host:1") == "host:1"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nonsense", "^RAY_ADDRESS takes auto, local or HOST:PORT as ray start shows it, not 'no"),
        ("ray://host:10001", "^RAY_ADDRESS ray://host:10001: start dafuse on a machine of the"),
        ("127.0.0.2:1", r"at 127.0.0.2:1 \(RAY_ADDRESS\) .*or set RAY_ADDRESS=local"),
    ],
)
def test_a_wrong_address_in_the_environment_is_named_by_it(
    monkeypatch: pytest.MonkeyPatch, named: str, message: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(DafuseError, match=message), joined("auto"):
        pass
    with pytest.raises(DafuseError, match=message):
        require_there("auto")


def test_what_ray_says_of_a_node_that_went_is_not_shown() -> None:
    """Ray prints it by this function, in a process that imported it through dafuse."""
    code = """
from dafuse.cluster import require_possible
require_possible("host:1")
from ray._private.worker import print_to_stdstream
for line in ("Raylet is terminated. Last 20 lines:\\n [state-dump]", "something else"):
    print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "something else" in shown.stdout
    assert "state-dump" not in shown.stdout + shown.stderr


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_cluster([1, 1]) as started:
        yield started.address


def test_a_cluster_is_joined_and_left_and_sigterm_stays_ours(address: str) -> None:
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with joined(address) as same:
        assert same is ray
        assert ray.cluster_resources()["CPU"] == 2
        assert ray.get(ray.remote(lambda: os.getpid()).remote()) != os.getpid()
        assert signal.getsignal(signal.SIGTERM) is before
        with joined(address):  # within
            pass
        assert ray.is_initialized()
    assert not ray.is_initialized()


def test_auto_is_the_cluster_that_the_environment_names(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    progress = Progress()
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with joined("auto", progress) as ray:
        assert ray.get_runtime_context().gcs_address == address
    assert said == [f"joined the Ray cluster at {address}: 2 processors"]


def test_an_error_of_the_work_is_not_taken_for_one_of_the_connection(address: str) -> None:
    with pytest.raises(ValueError, match="mine"), joined(address):
        raise ValueError("mine")

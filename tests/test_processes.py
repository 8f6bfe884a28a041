"""What the environment tells of the processes and machines of a run."""

import re

import pytest

from dafuse.errors import DafuseError
from dafuse.processes import rank_here, started_on

PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "1"}


def test_machines_need_to_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DafuseError, match="needs MASTER_ADDR, MASTER_PORT, NODE_RANK"):
        started_on(1, 2)
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    assert started_on(1, 2) == (1, 2)
    monkeypatch.setenv("NODE_RANK", "")
    with pytest.raises(DafuseError, match="needs NODE_RANK in the environment"):
        started_on(1, 2)


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        *(("NODE_RANK", wrong, "among the 2 of --nodes: from 0 to 1") for wrong in "25x²"),
        ("NODE_RANK", "-1", "from 0 to 1"),
        *(("MASTER_PORT", wrong, "from 1 to 65535") for wrong in ("0", "65536", "http", "1.5")),
        *(("MASTER_ADDR", wrong, "finds no address") for wrong in ("no.such.invalid", "a..b")),
    ],
)
def test_what_machines_are_told_of_each_other_must_fit(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: str, why: str
) -> None:
    for told, value in {**PLACE, name: wrong}.items():
        monkeypatch.setenv(told, value)
    with pytest.raises(DafuseError, match=f"^{name} is '{re.escape(wrong)}'.*{why}"):
        started_on(1, 2)


def test_one_machine_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(DafuseError, match=r"^NODE_RANK is '1'.* --nodes: 0"):
        started_on(1, 1)
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "no.such.invalid")
    assert started_on(1, 1) == (1, 1)
    with pytest.raises(DafuseError, match=r"^MASTER_ADDR is"):
        started_on(2, 1)


def test_torchrun_tells_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert started_on(1, 1) == started_on(2, 2) == (2, 2)
    with pytest.raises(DafuseError, match="torchrun started 2 processes on each of 2 machines"):
        started_on(4, 1)


def test_a_process_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_here() == ""
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert rank_here() == ""
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert rank_here().startswith("rank 2 on ")
    monkeypatch.setenv("NODE_RANK", "1")
    assert rank_here().startswith("rank 2 of node 1 on ")
    monkeypatch.setenv("RANK", "0")
    assert rank_here() == ""

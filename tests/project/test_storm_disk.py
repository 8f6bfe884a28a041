"""A small share of the storm's kills and broken disks; `python -m faults kills disks` has more."""

from collections.abc import Iterator
from random import Random

import pytest

from faults.changes import CHANGES, Change
from faults.disks import Disks
from faults.kills import Kills
from faults.trial import Outcome, Part

SEEDS = range(2)


def of(part: Part) -> Iterator[Part]:
    yield part
    part.close()


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    yield from of(Kills(tmp_path_factory.mktemp("kills")))


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    yield from of(Disks(tmp_path_factory.mktemp("disks")))


def named(what: str) -> Change:
    return next(change for change in CHANGES if change.what == what)


@pytest.mark.parametrize("what", ["learn, new classes", "rename"])
def test_a_killed_change_leaves_the_old_model_or_the_new_one(kills: Kills, what: str) -> None:
    for seed in SEEDS:
        trial = kills.killed(named(what), Random(seed), seed)
        assert trial.outcome == Outcome.SURVIVED, trial


@pytest.mark.parametrize("kind", ["full", "read-only", "failing fsync"])
def test_on_a_broken_disk_a_change_is_done_or_refused_in_a_line(disks: Disks, kind: str) -> None:
    for seed in SEEDS:
        trial = disks.broken(kind, named("rename"), Random(seed), seed)
        assert trial.outcome == Outcome.SURVIVED, trial

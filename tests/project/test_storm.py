"""The loop of the storm (`tests/faults`), and a small share of its damage and of its server."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from faults.__main__ import make_part
from faults.command import Ended
from faults.damage import Found
from faults.harm import PLACES, Harm
from faults.storm import storm
from faults.subjects import TIMES
from faults.trial import Outcome, Trial

# seeds; tests/project/test_storm_*.py have those of the other parts
SHARES = {"damage": 40, "server": 5}
MINUTES = 10.0  # far more than they take: trials bound the share, not time


@pytest.mark.parametrize("part", SHARES)
def test_a_share_of_the_storm_is_survived(part: str, tmp_path: Path) -> None:
    log = tmp_path / "faults.jsonl"
    assert storm({part: make_part(part)}, 1, MINUTES, SHARES[part], log), log.read_text()


def test_a_run_may_take_another_time_but_not_give_other_numbers() -> None:
    def found(final: str, seconds: str) -> Found:
        told = f"  Final      {final}\n  Seconds    {seconds}\n"
        return Found(Ended(0, told, ""), None, "", TIMES)

    assert found("75.00", "6.99").answers == found("75.00", "9.49").answers
    assert found("75.00", "6.99").answers != found("50.00", "6.99").answers


class Breaks:
    """A part whose third trial fails."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def trials(self, seed: int) -> Iterator[Trial]:
        outcome = Outcome.LOST if seed == 9 else Outcome.SURVIVED
        yield Trial("break", seed, outcome, "it broke", count=1000)

    def close(self) -> None:
        assert self.place.is_dir()


def test_a_failure_is_counted_and_told_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "faults.jsonl"
    assert not storm({"breaking": Breaks}, 7, 1.0, 4, log)
    told = capsys.readouterr().out
    (row,) = (line for line in told.splitlines() if "│ break " in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("breaking", "break", "4,000", "3,000", "1,000", "0", "0")
    ]
    assert "breaking --seed 9 --trials 1: lost: it broke" in told
    assert [line.count('"seed"') for line in log.read_text().splitlines()] == [1] * 4


@pytest.mark.parametrize("way", PLACES)
def test_every_harm_takes_the_file_away(way: str, tmp_path: Path) -> None:
    """Otherwise a trial that took nothing away would count as survived."""
    for name in ("folder", "outside"):
        (tmp_path / name).mkdir()
    file = tmp_path / "folder" / "file"
    file.write_text("whole")
    PLACES[way](Harm(file, (), tmp_path / "outside", Random(0)))
    assert file.is_symlink() or not (file.is_file() and os.access(file, os.R_OK))

"""The loop of the storm (`tests/faults`), and a small share of its damage and of its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.__main__ import make_part
from faults.storm import storm
from faults.trial import Outcome, Trial

SHARES = {"damage": 40, "server": 5}  # seeds; tests/test_storm_*.py have those of the other parts
MINUTES = 10.0  # far more than they take: trials bound the share, not time


@pytest.mark.parametrize("part", SHARES)
def test_a_share_of_the_storm_is_survived(part: str, tmp_path: Path) -> None:
    log = tmp_path / "faults.jsonl"
    assert storm({part: make_part(part)}, 1, MINUTES, SHARES[part], log), log.read_text()


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

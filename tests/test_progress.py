"""Progress of long work where there is no terminal, and guesses at what a typo meant."""

import io

import pytest
from rich.console import Console

from dafuse.cli import COMMANDS
from dafuse.engine.display import TerminalProgress
from dafuse.errors import did_you_mean
from dafuse.progress import LineProgress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_few_seconds_and_none_for_short_work() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = LineProgress(lines.append, clock, every=5)
    with progress.bar("reading", 10) as bar:
        clock.now = 4
        bar.advance(10)
    assert not lines
    with progress.bar("features", 2000) as bar:
        for _ in range(20):
            clock.now += 1
            bar.advance(100)
        assert bar.done == 2000
    assert lines == [
        "features: 100 of 2,000 (5%), 19 s left",
        "features: 600 of 2,000 (30%), 14 s left",
        "features: 1,100 of 2,000 (55%), 9 s left",
        "features: 1,600 of 2,000 (80%), 4 s left",
    ]


def test_many_short_bars_say_something_too() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = LineProgress(lines.append, clock, every=5)
    for number in range(6):
        with progress.bar(f"part {number}", 2) as bar:
            clock.now += 2
            bar.advance(1, note="loss 0.1")
    assert lines == [f"part {number}: 1 of 2 (50%), 2 s left, loss 0.1" for number in (2, 5)]


def test_work_without_a_length_is_said_where_the_work_before_it_took_long() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = LineProgress(lines.append, clock, every=5)
    with progress.bar("solving", 0):
        assert lines == []
    with progress.bar("features", 2) as bar:
        clock.now += 6
        bar.advance(2)
    with progress.bar("solving", 0):
        assert lines == ["features: 2 of 2 (100%), 0 s left", "solving ..."]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(59, "59 s"), (61, "1 min"), (3600 + 300, "1 h 5 min")]
)
def test_time_left_in_words(seconds: float, expected: str) -> None:
    lines: list[str] = []
    clock = Clock()
    with LineProgress(lines.append, clock, every=seconds).bar("x", 2) as bar:
        clock.now = seconds
        bar.advance()
    assert lines == [f"x: 1 of 2 (50%), {expected} left"]


def test_work_of_unknown_length() -> None:
    lines: list[str] = []
    with LineProgress(lines.append, every=0).bar("x", 0) as bar:
        bar.advance(3)
    assert lines == ["x: 3"]


def test_a_log_gets_lines_and_a_terminal_bars() -> None:
    log = io.StringIO()
    with TerminalProgress(Console(file=log, width=30)) as progress:
        progress.say("a line that is longer than the log is wide, and stays one")
        with progress.bar("features", 3) as bar:
            bar.advance(3)
    assert log.getvalue() == "a line that is longer than the log is wide, and stays one\n"
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80)
    with TerminalProgress(terminal) as progress, progress.bar("features", 3) as bar:
        bar.advance(3)
    assert "features" in screen.getvalue()


# typos


def test_what_was_likely_meant() -> None:
    assert did_you_mean("lern", COMMANDS) == "; did you mean learn?"
    assert did_you_mean("Cifar_100", ["cifar100", "glyphs"]) == "; did you mean cifar100?"
    assert did_you_mean("zzz", COMMANDS) == ""
    assert did_you_mean("vit", ["vita", "vitb", "x"], most=2) in (
        "; did you mean vita, vitb?",
        "; did you mean vitb, vita?",
    )

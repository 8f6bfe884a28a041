"""The loop over parts and seeds, bounded in time, and the table of what survived."""

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from faults.trial import MakePart, Outcome, Trial

EVERY = 30.0  # seconds between two lines that say how far it is


def storm(
    parts: Mapping[str, MakePart], first_seed: int, minutes: float, trials: int | None, log: Path
) -> bool:
    """Run all parts, each for its share of the time; print the table. Whether all survived.

    Args:
        parts: what to try
        first_seed: of the first trial of each part; the next one has the next number
        minutes: for all parts together
        trials: of each part at most; None for as many as the time allows
        log: a line of JSON for each trial, as they come
    """
    tried: dict[str, list[Trial]] = {}
    began = time.monotonic()
    for number, (name, make) in enumerate(parts.items()):
        left = began + 60 * minutes - time.monotonic()
        until = time.monotonic() + left / (len(parts) - number)
        tried[name] = []
        with log.open("a") as lines:
            for trial in _of_part(name, make, first_seed, until, trials):
                tried[name].append(trial)
                lines.write(json.dumps({"part": name, **asdict(trial)}) + "\n")
                lines.flush()
    show(tried, time.monotonic() - began)
    return all(trial.outcome == Outcome.SURVIVED for found in tried.values() for trial in found)


def _of_part(
    name: str, make: MakePart, first_seed: int, until: float, most: int | None
) -> Iterator[Trial]:
    with _own_folder() as place:
        part = make(place)
        try:
            seed, done, said = first_seed, 0, time.monotonic()
            while time.monotonic() < until and (most is None or seed < first_seed + most):
                for trial in part.trials(seed):
                    done += trial.count
                    if trial.outcome != Outcome.SURVIVED:
                        _say(f"{name}: seed {seed}: {trial.outcome}: {trial.what}: {trial.detail}")
                    yield trial
                seed += 1
                if time.monotonic() - said > EVERY:
                    said = time.monotonic()
                    _say(f"{name}: {done:,} tried, {until - said:.0f} s left")
        finally:
            part.close()


@contextmanager
def _own_folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="dafuse-faults-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def show(tried: Mapping[str, list[Trial]], seconds: float) -> None:
    """Print a row for each heading of each part, and every failure with its seed."""
    table = Table(title=f"{seconds / 60:.1f} minutes", title_justify="left")
    for column in ("part", "what", "tried", *Outcome):
        table.add_column(column, justify="left" if column in ("part", "what") else "right")
    for part, trials in tried.items():
        for what in dict.fromkeys(trial.what for trial in trials):
            found: Counter[Outcome] = Counter()
            for trial in trials:
                if trial.what == what:
                    found[trial.outcome] += trial.count
            numbers = [found.total(), *(found[outcome] for outcome in Outcome)]
            table.add_row(part, what, *(f"{number:,}" for number in numbers))
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for part, trials in tried.items():
        for trial in trials:
            if trial.outcome != Outcome.SURVIVED:
                said = f"{part} --seed {trial.seed} --trials 1: {trial.outcome}: {trial.detail}"
                console.print(said, markup=False, highlight=False, soft_wrap=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""Damaged files of every kind that dafuse reads of its own: refused in a line, or read as before.

A trial copies a folder, harms one of its files (or forges one whose hash is right), and gives one
command. It must say in one sentence that it cannot, or answer as before. Whatever it does, nothing
outside the folder is touched, nothing ends in a traceback or hangs, and nothing that comes from a
file can write to the terminal anything but characters. A change that was refused has deleted and
changed nothing, so that bringing back the one file mends the folder.
"""

import re
import resource
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from faults.command import Ended, Hangs, start
from faults.harm import BYTES, PLACES, Harm, contents, in_order
from faults.subjects import Reading, Subject, Subjects
from faults.trial import Outcome, Trial
from faults.world import World

FORGED = 0.3  # share of the trials
PLACED = 0.4  # share of the others that put something else in a file's place
MEMORY = 8 << 30  # bytes of addresses that a command may ask for
PATIENCE = 120.0  # seconds after which a command hangs
SAYS_SO = (
    "damaged",
    "cannot be read",
    "missing",
    "is not",
    "does not",
    "skipped",
    "unreadable",
    "is a link",
)
OPTIONAL = ("approximations.json", "provenance.json")  # whose absence says nothing
SHOWN = {"\n", "\t", "\r"}


class Damage:
    """A part of the storm."""

    def __init__(self, place: Path) -> None:
        world_place, made = place / "world", place / "made"
        for folder in (world_place, made):
            folder.mkdir()
        self.here, self.outside = place / "here", place / "outside"
        self.subjects = Subjects(World(world_place), made)
        self._healthy: dict[tuple[str, str], Found] = {}

    def trials(self, seed: int) -> Iterator[Trial]:
        rng = Random(seed)
        (name,) = rng.choices(list(Subjects.SHARES), list(Subjects.SHARES.values()))
        subject = self.subjects.of(name)
        shares = [one.share for one in subject.readings.values()]
        ((how, reading),) = rng.choices(list(subject.readings.items()), shares)
        healthy = self._when_whole(subject, how, reading)
        self._fresh(subject)
        forged = bool(subject.forge) and rng.random() < FORGED
        done = self._forge(subject, rng) if forged else self._harm(subject, rng)
        before, around = contents(self.here), contents(self.outside)
        what = f"{subject.name}, {'forged' if forged else 'damaged'}"
        outcome, detail = Outcome.SURVIVED, ""
        try:
            found = self._read(reading)
            wrong = self._wrong(found, before, around, None if forged else healthy)
        except Hangs:
            wrong = Outcome.WRONG, f"it did not end in {PATIENCE:.0f} s"
        if wrong is not None:
            outcome, detail = wrong[0], f"{how}: {done}: {wrong[1]}"
        yield Trial(what, seed, outcome, "".join(map(_shown, detail)))

    def close(self) -> None:
        pass

    def _when_whole(self, subject: Subject, how: str, reading: Reading) -> "Found":
        """Return the command's answer where nothing is damaged, asked once."""
        if (subject.name, how) not in self._healthy:
            self._fresh(subject)
            found = self._read(reading)
            if found.ended.status != 0:
                raise RuntimeError(f"{subject.name}, {how}: {found.ended}")
            self._healthy[subject.name, how] = found
        return self._healthy[subject.name, how]

    def _fresh(self, subject: Subject) -> None:
        for folder in (self.here, self.outside):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(subject.whole, self.here, symlinks=True)
        self.outside.mkdir()

    def _forge(self, subject: Subject, rng: Random) -> str:
        name = rng.choice(list(subject.forge))
        where = self.here / "model" if subject.name == "model" else self.here
        return f"forged {name}: {subject.forge[name](where, rng)}"

    def _harm(self, subject: Subject, rng: Random) -> str:
        files = in_order(file for file in self.here.glob(subject.damaged) if file.is_file())
        file = rng.choice(files)
        others = tuple(one for one in files if one.parent == file.parent and one != file)
        ways = PLACES if rng.random() < PLACED and file.name not in OPTIONAL else BYTES
        # not a model's or a run's own folder, which may well be reached by a link
        inner = self.here not in (file.parent, file.parent.parent)
        if inner and rng.random() < 0.03:
            ways = {"link to the folder": Harm.link_folder}
        name = rng.choice([one for one in ways if one != "swap" or not subject.alike])
        ways[name](Harm(file, others, self.outside, rng))
        return f"{name} of {file.relative_to(self.here)}"

    def _read(self, reading: Reading) -> "Found":
        before = partial(_begin, reading.before, self.here)
        ended = start(*reading.words(self.here), before=before).wait(PATIENCE)
        after = None
        if reading.after is not None and ended.status == 0:
            after = start(*reading.after(self.here), before=before).wait(PATIENCE)
        told = reading.told(self.here) if reading.told and ended.status == 0 else ""
        return Found(ended, after, told, reading.times)

    def _wrong(
        self,
        found: "Found",
        before: "Things",
        around: "Things",
        healthy: "Found | None",
    ) -> tuple[Outcome, str] | None:
        """Say what is not as promised; None: nothing. Forged files may have other answers."""
        for ended in found.both:
            if ended.has_traceback or ended.status < 0:
                return Outcome.TRACEBACK, f"status {ended.status}: {_last(ended)}"
            if raw := {one for one in ended.out + ended.err if not _may_be_shown(one)}:
                return Outcome.WRONG, f"it prints {sorted(raw)!r}: {_last(ended)}"
            if ended.status != 0 and not _refuses(ended):
                return Outcome.WRONG, f"status {ended.status}, not a refusal: {_last(ended)}"
        if contents(self.outside) != around:
            return Outcome.LOST, "it touched what is outside"
        if found.ended.status != 0 and healthy is None:
            return None
        if found.ended.status != 0:
            gone = [name for name, what in before.items() if contents(self.here).get(name) != what]
            gone = [name for name in gone if before[name][0] == "file"]
            return (Outcome.LOST, f"refused, but changed {gone}") if gone else None
        if healthy is None or (found.after is not None and found.after.status != 0):
            return None
        more = _news(found.answers, healthy.answers)
        return (Outcome.WRONG, f"other answers: {more}") if more else None


class Found:
    """A command's end, the question after it, and what it told by files."""

    def __init__(
        self, ended: Ended, after: Ended | None, told: str, times: tuple[str, ...] = ()
    ) -> None:
        self.ended, self.after, self.told, self.times = ended, after, told, times

    @property
    def answers(self) -> list[str]:
        """Return the lines without the sizes of files, and without times that always differ."""
        said = (self.after or self.ended).out + self.told
        lines = (line for line in said.splitlines() if not line.strip().startswith(self.times))
        return [re.sub(r"[\d.,]+ (MB|bytes)", "", line) for line in lines]

    @property
    def both(self) -> list[Ended]:
        return [ended for ended in (self.ended, self.after) if ended is not None]


Things = dict[str, tuple[str, bytes]]


def _begin(before: Callable[[Path], None] | None, here: Path) -> None:
    """Set limits in the process that is to read, so that a bomb is seen and harms nobody."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if before is not None:
        before(here)


def _refuses(ended: Ended) -> bool:
    """Tell whether its last line is a sentence that begins as those of dafuse do."""
    return ended.status in (1, 2) and _last(ended).startswith("dafuse: ")


def _last(ended: Ended) -> str:
    return (ended.err.strip().splitlines() or [""])[-1][:500]


def _news(said: list[str], known: list[str]) -> str:
    """Return what is said otherwise than of whole files, unless it tells of the damage."""
    differing = [line for line in said if line not in known]
    missing = [line for line in known if line not in said]
    if any(word in line for line in differing for word in SAYS_SO):
        return ""
    return " / ".join(differing or missing)[:300]


def _may_be_shown(character: str) -> bool:
    return character in SHOWN or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def _shown(character: str) -> str:
    return character if _may_be_shown(character) else repr(character)[1:-1]

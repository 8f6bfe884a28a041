"""Pictures and tables from everywhere, given to `dafuse learn` and `dafuse predict`.

Honest ones are answered and learned as without the hostile ones beside them; each of those is
named, or its source is refused in a sentence. No command takes more than `MOST` bytes of memory.
"""

import json
import resource
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from dafuse.data.class_names import taught_name
from dafuse.errors import DafuseError
from faults.command import Ended, Hangs, run
from faults.corpus import NAMES, honest, hostile, large, put_no_file
from faults.hostile_tables import TABLES
from faults.trial import Outcome, Trial
from faults.world import World, require_well

MOST = 3 * 2**29  # bytes at the same time: 1 GiB for a picture, half for all else
HONEST, HOSTILE = 6, 6  # files of a trial, at most
CLOSE = 1e-4  # how far probabilities may differ for the same pixels, in another batch
ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # kinds of characters that a terminal may obey
SHOWN = "\n\u200c\u200d"
Answers = dict[str, dict[str, Any]]


class Wrong(Exception):
    """The fault of a command that did what it must not."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Pictures:
    """Each trial gives one command a folder or a table that is made by its seed."""

    def __init__(self, place: Path) -> None:
        self.world, self.place = World(place / "world"), place
        self._peak = place / "peak"
        self._kinds: list[tuple[str, int, Callable[[Random], int]]] = [
            ("pictures, predicted", 8, self._predicted),
            ("pictures, learned", 4, self._learned),
            ("names of classes", 3, self._named),
            ("tables", 4, self._table),
            ("large pictures", 1, self._large),
        ]

    def trials(self, seed: int) -> Iterator[Trial]:
        random = Random(seed)
        kinds, weights, _ = zip(*self._kinds, strict=True)
        yield self.tried(random.choices(kinds, weights)[0], seed, random)

    def tried(self, kind: str, seed: int, random: Random) -> Trial:
        """One trial of this kind."""
        shutil.rmtree(self.place / "trial", ignore_errors=True)
        (self.place / "trial").mkdir()
        try:
            count = next(do for name, _, do in self._kinds if name == kind)(random)
        except Wrong as wrong:
            return Trial(kind, seed, wrong.outcome, " ".join(str(wrong).split()))
        except Hangs as hangs:
            return Trial(kind, seed, Outcome.WRONG, str(hangs))
        return Trial(kind, seed, count=count)

    def close(self) -> None:
        """Do nothing: nothing was started that goes on."""

    # what is tried; each returns how many files it gave

    def _predicted(self, random: Random) -> int:
        """A folder of both kinds answers for the honest ones as a folder of those alone does."""
        mixed, alone = self.place / "trial" / "mixed", self.place / "trial" / "alone"
        mixed.mkdir(), alone.mkdir()
        of = self._put_honest(random, [mixed, alone], random.randint(1, HONEST))
        named = [put_no_file(random, mixed, f"none{n}") for n in range(random.randint(0, 2))]
        for number in range(random.randint(1, HOSTILE)):
            data, suffix = hostile(random)
            name = _file_name(random, f"bad{number}", suffix)
            if _put(mixed, name, data):
                named.append(name)
        said = self._dafuse("predict", self.world.model, mixed, "--json", "--top", "5")
        expected = _answers(
            self._dafuse("predict", self.world.model, alone, "--json", "--top", "5")
        )
        found = _answers(said)
        wrong_names = [
            name for name in named if name and name not in found and _plain(name) not in said.err
        ]
        _require(not wrong_names, f"nothing is said of {wrong_names}")
        for name, answer in found.items():
            if name not in of:
                _require("error" in answer, f"{name!r} is answered: {answer}")
        for name, (original, exact) in of.items():
            _require(_close(found.get(name), expected.get(name)), f"{name!r} is answered otherwise")
            right = self._originals[original]
            _require(not exact or _close(found[name], right), f"{name!r} is not its original")
        for form in ([], ["--csv"]):  # for what is printed only
            self._dafuse("predict", self.world.model, mixed, *form)
        return len(of) + len(named)

    def _learned(self, random: Random) -> int:
        """A lesson of both kinds leaves a model as the honest ones alone do."""
        mixed, alone = self.place / "trial" / "mixed", self.place / "trial" / "alone"
        classes = ["one", "two", "three"][: random.randint(2, 3)]
        count = 0
        for name in classes:
            folders = [mixed / name, alone / name]
            for folder in folders:
                folder.mkdir(parents=True)
            count += len(self._put_honest(random, folders, random.randint(2, 3)))
        named: list[str | None] = []
        for number in range(random.randint(1, HOSTILE)):
            folder, (data, suffix) = mixed / random.choice(classes), hostile(random)
            name = _file_name(random, f"bad{number}", suffix)
            if _put(folder, name, data):
                named.append(name)
        named += [
            put_no_file(random, mixed / classes[0], f"none{n}") for n in range(random.randint(0, 2))
        ]
        (mixed / "up").symlink_to(random.choice([".", "..", classes[-1], "../../trial"]))
        said = self._dafuse("learn", self.place / "trial" / "model", mixed)
        _require(said.status == 0, f"the lesson is refused: {said.err}")
        require_well(run("learn", self.place / "trial" / "expected", alone))
        models = [self.place / "trial" / name for name in ("model", "expected")]
        found, expected = (_answers(self.world.answers(model)) for model in models)
        same = found.keys() == expected.keys()
        _require(
            same and all(_close(found[name], expected[name]) for name in found), "another model"
        )
        return count + len(named)

    def _named(self, random: Random) -> int:
        """A class of any name is taught under it, or refused in a sentence."""
        name = random.choice(NAMES) if random.random() < 0.8 else _made_up(random)
        folder = self.place / "trial" / "photos"
        for each in ("other", name):
            try:
                (folder / each).mkdir(parents=True)
            except OSError:  # no folder can have this name
                return 1
            self._put_honest(random, [folder / each], 2)
        try:
            accepted = not name.startswith(".") and taught_name(name)
        except DafuseError:
            accepted = False
        model = self.place / "trial" / "model"
        said = self._dafuse("learn", model, folder)
        if accepted:
            _require(said.status == 0, f"{name!r} is refused: {said.err}")
            self._dafuse("info", model)
        elif name.startswith("."):
            _require("dot" in said.out + said.err, f"nothing is said of {name!r}")
        else:
            _require(said.is_refusal and not model.exists(), f"{name!r} is taught: {said}")
        return 1

    def _table(self, random: Random) -> int:
        """A table or an .npz that is not as it should be is refused in a sentence."""
        kind = random.choice(sorted(TABLES))
        folder = self.place / "trial"
        shutil.copy(self._sources[0], folder / "a.png")
        source = TABLES[kind](random, folder)
        said = self._dafuse("learn", folder / "model", source)
        _require(said.is_refusal, f"{kind}: {said}")
        _require(not (folder / "model").exists(), f"{kind}: a model was made")
        return 1

    def _large(self, random: Random) -> int:
        """The largest picture that is allowed is answered within the bound."""
        picture = large(random)
        path = self.place / "trial" / f"large.{picture.suffix}"
        path.write_bytes(picture.data)
        found = _answers(self._dafuse("predict", self.world.model, path, "--json"))
        _require("name" in found[path.name], f"it is not answered: {found}")
        return 1

    # how

    @cached_property
    def _originals(self) -> Answers:
        """Return the answers for the images that honest ones are made of."""
        return {
            str(path): _answers(
                require_well(run("predict", self.world.model, path, "--json", "--top", "5"))
            )[path.name]
            for path in self._sources
        }

    @cached_property
    def _sources(self) -> list[Path]:
        return sorted(path for path in self.world.asked.rglob("*") if path.is_file())

    def _put_honest(
        self, random: Random, folders: list[Path], count: int
    ) -> dict[str, tuple[str, bool]]:
        """Put the same honest files into folders; name -> what it shows, and whether exactly."""
        put = {}
        for number in range(count):
            source = random.choice(self._sources)
            picture = honest(random, Image.open(source).convert("RGB"))
            name = _file_name(random, f"good{number}", picture.suffix)
            if all(_put(folder, name, picture.data) for folder in folders):
                put[name] = str(source), picture.exact
        return put

    def _dafuse(self, *arguments: object) -> Ended:
        """Run a command, which must not fail badly, take much or print what terminals obey."""
        ended = run(*arguments, before=partial(_note_peak, self._peak))
        if ended.has_traceback or ended.status not in (0, 1, 2):
            raise Wrong(Outcome.TRACEBACK, f"{ended.status}: {ended.err[-300:]!r}")
        acting = {one for one in ended.out + ended.err if unicodedata.category(one) in ACTING}
        _require(acting <= set(SHOWN), f"{sorted(acting)} is printed")
        peak = int(self._peak.read_text())
        _require(peak <= MOST, f"{arguments[0]} took {peak:,} bytes")
        return ended


def _note_peak(file: Path) -> None:
    """Write at the end of this process how much memory it had at most."""
    Finalize(None, _write_peak, (file,), exitpriority=1)


def _write_peak(file: Path) -> None:
    file.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _file_name(random: Random, plain: str, suffix: str) -> str:
    """A name of its own, often a strange one."""
    strange = random.choice(NAMES) if random.random() < 0.4 else _made_up(random)
    name = f"{plain}.{suffix}" if random.random() < 0.5 else f"{strange}{plain}.{suffix}"
    return f"x{name}" if name.startswith(".") else name


def _made_up(random: Random) -> str:
    """A few characters of any kind that a file's name may have."""
    points = [random.choice([0x20, 0x300, 0x2000, 0xFFFF]) for _ in range(random.randint(1, 12))]
    text = "".join(chr(random.randrange(1, point)) for point in points).replace("/", "_")
    return "".join(one for one in text if not 0xD800 <= ord(one) <= 0xDFFF) or "_"


def _put(folder: Path, name: str, data: bytes) -> bool:
    """Write a file; False where no file can have this name."""
    try:
        (folder / name).write_bytes(data)
    except OSError:
        return False
    return True


def _plain(name: str) -> str:
    """The part of a name that is printed as it is."""
    return name[name.rindex("bad") :] if "bad" in name else name


def _answers(said: Ended) -> Answers:
    """Return the answers by the names of the files."""
    try:
        return {Path(one["file"]).name: one for one in json.loads(said.out)}
    except ValueError:
        raise Wrong(Outcome.WRONG, f"no answers: {said}") from None


def _close(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Tell whether two answers are the same but for rounding."""
    if not one or not other or "top" not in one or "top" not in other:
        return False
    shares = [
        {each["name"]: each["probability"] for each in answer["top"]} for answer in (one, other)
    ]
    return shares[0].keys() == shares[1].keys() and all(
        abs(share - shares[1][name]) <= CLOSE for name, share in shares[0].items()
    )


def _require(right: bool, detail: str) -> None:
    if not right:
        raise Wrong(Outcome.WRONG, detail)

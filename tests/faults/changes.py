"""Commands that change a model, and what their folders and answers are when nothing goes wrong."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dafuse.data.sketches import SKETCHES
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from faults.command import Ended, run
from faults.disk_calls import Counting, ReadOnly, calls_of, install
from faults.served_lesson import teach_by_server
from faults.trial import Outcome
from faults.world import FIRST, World, require_well

STAYS, GOES, RENAMED = list(SKETCHES)[FIRST]  # classes of the first lesson, by their fate
Before = Callable[[], None] | None
Words = Callable[[World, Path], list[object]]


@dataclass(frozen=True)
class Change:
    """A command, and the models that it begins with."""

    what: str
    words: Words  # of the command, for a folder that has `model`
    lessons: tuple[str, ...] = ("first", "second")  # that the model had; none: no model yet
    options: tuple[str, ...] = ()  # of the first of these lessons
    asked: str = "model"  # what is asked afterwards, in that folder
    exported: bool = False  # whether there is such a file already
    share: float = 1  # of the trials, beside that of others: less for what takes long

    def begin(self, world: World, there: Path) -> None:
        """Make what there is before the command."""
        there.mkdir()
        for number, lesson in enumerate(self.lessons):
            options = () if number else self.options
            require_well(run("learn", there / "model", world.place / lesson, *options))
        if self.exported:
            require_well(run("export", there / "model", there / self.asked))
            require_well(run("forget", there / "model", GOES))

    def do(self, world: World, there: Path, before: Before = None) -> Ended:
        return run(*self.words(world, there), before=before)


@dataclass(frozen=True)
class ServedLesson(Change):
    """A lesson that is posted to a server."""

    def do(self, world: World, there: Path, before: Before = None) -> Ended:
        return teach_by_server(there / "model", world.second, before)


def _learn(lesson: str, *options: str) -> Words:
    return lambda world, there: ["learn", there / "model", world.place / lesson, *options]


def _step(name: str, *arguments: str) -> Words:
    return lambda world, there: [name, there / "model", *arguments]


def _merge(world: World, there: Path) -> list[object]:
    return ["merge", world.model, world.other, "--out", there / "model"]


def _export(*options: str) -> Words:
    return lambda world, there: ["export", there / "model", there / "asked.onnx", *options]


TUNED = ("--set", "tune=each")
CHANGES = (
    Change("learn, first", _learn("first"), ()),
    Change("learn, new classes", _learn("second"), ("first",)),
    Change("learn, known classes", _learn("more")),
    Change("merge", _merge, ()),
    Change("trim", _step("trim", "--keep", "1")),
    Change("undo", _step("undo")),
    Change("forget", _step("forget", GOES)),
    Change("forget for good", _step("forget", GOES, "--for-good")),
    Change("rename", _step("rename", RENAMED, "called otherwise")),
    Change("export, first", _export(), asked="asked.onnx"),
    Change("export", _export(), asked="asked.onnx", exported=True),
    Change("export, int8", _export("--int8"), asked="asked.onnx", exported=True, share=0.2),
    ServedLesson("server in a lesson", _step("serve"), ("first",), share=0.3),
    Change("learn, first, tuned", _learn("first", "--tune"), (), share=0.05),
    Change("learn, new classes, tuned", _learn("second"), ("first",), TUNED, share=0.05),
)


@dataclass
class State:
    """A folder's answers, and what it holds and answers after one change more."""

    answers: str  # as JSON; "" where there is nothing to ask yet
    versions: str  # which counts, and which is the oldest
    listing: list[str] = field(default_factory=list)
    next_answers: str = ""
    next_listing: list[str] = field(default_factory=list)


class Known:
    """A change that nothing disturbed: before, after, its calls of the disk and its seconds."""

    def __init__(self, world: World, change: Change) -> None:
        self.world, self.change = world, change
        self.start = world.place / f"start of {change.what}"
        change.begin(world, self.start)
        there = self.fresh()
        self.before = self._state(there)
        there = self.fresh()
        calls = world.place / "calls"
        calls.unlink(missing_ok=True)
        began = time.monotonic()
        require_well(change.do(world, there, partial(install, Counting(str(there), str(calls)))))
        self.seconds = time.monotonic() - began
        self.calls = calls_of(calls)
        self.after = self._state(there)

    def fresh(self) -> Path:
        """The folder that the command is given, as it was before it."""
        return self.world.copy(self.start, "trial")

    def say(self, there: Path, before: Before = None) -> Ended:
        """Ask for the images' classes."""
        return self.world.answers(there / self.change.asked, before)

    def next(self, there: Path, state: State) -> Ended:
        """The next change: a name, or where there is nothing to name yet, the same command."""
        if self.change.asked.endswith(".onnx") or not state.answers:
            return self.change.do(self.world, there)
        return run("rename", there / "model", STAYS, "named at last")

    def _state(self, there: Path) -> State:
        said = self.say(there)
        state = State(said.out, versions(there / "model"), listing(there))
        require_well(self.next(there, state))
        state.next_answers, state.next_listing = self.say(there).out, listing(there)
        return state

    def wrong(
        self,
        there: Path,
        ended: Ended,
        broken: Before = None,
        mend: Callable[[], None] = lambda: None,
    ) -> tuple[Outcome, str] | None:
        """Say what is not as promised after a command was killed or refused; None: nothing.

        Args:
            there: the folder
            ended: how the command ended
            broken: the fault as it was meanwhile, under which the model must predict, too
            mend: called before the next change
        """
        if ended.has_traceback:
            return Outcome.TRACEBACK, _last_line(ended)
        for fault in (broken, None) if broken else (None,):
            said = self.say(there, fault)
            if said.has_traceback:
                return Outcome.TRACEBACK, f"asked: {_last_line(said)}"
            state = self._state_of(there, said)
            if state is None:
                outcome = Outcome.WRONG if said.status == 0 else Outcome.LOST
                return outcome, f"neither the old nor the new version answers: {_last_line(said)}"
        assert state is not None
        if ended.status == 0 and state is not self.after:
            return Outcome.LOST, "it was said to be done and is not"
        # a first step that a read-only disk kept from being taken back is finished when next opened
        dead = isinstance(broken, partial) and isinstance(broken.args[0], ReadOnly)
        refused = ended.status == 2 and (self.before.versions or not dead)
        if refused and state is self.after and "is done" not in ended.err:
            return Outcome.WRONG, f"it was refused, and is done: {_last_line(ended)}"
        if state.versions and (damage := _damage(there / "model")):
            return Outcome.LOST, damage
        for_good = self.change.what == "forget for good" and state is self.after
        if for_good and listing(there) != state.listing:
            return Outcome.WRONG, f"not forgotten once opened: {_apart(there, state.listing)}"
        mend()
        done = self.next(there, state)
        if done.has_traceback or done.status != 0:
            outcome = Outcome.TRACEBACK if done.has_traceback else Outcome.WRONG
            return outcome, f"the next change: {_last_line(done)}"
        if self.say(there).out != state.next_answers:
            return Outcome.WRONG, "other answers after the next change"
        if listing(there) != state.next_listing:
            return (
                Outcome.WRONG,
                f"rubbish after the next change: {_apart(there, state.next_listing)}",
            )
        return None

    def _state_of(self, there: Path, said: Ended) -> State | None:
        """The old state or the new one, if it is exactly one of these."""
        found = said.out, versions(there / "model")
        for state in (self.before, self.after):
            if found == (state.answers, state.versions) and (said.status == 0) == bool(said.out):
                return state
        return None


def listing(folder: Path) -> list[str]:
    """Every file below, sorted; objects, whose names depend on random keys, by their number."""
    files = (file for file in folder.rglob("*") if not file.is_dir())
    return sorted(
        f"{file.parent.name}/{file.suffix}"
        if file.parent.name == "objects" and not file.name.startswith(".")
        else file.relative_to(folder).as_posix()
        for file in files
    )


def versions(model: Path) -> str:
    """Name the version that counts and the oldest; "" where there is no model."""
    folder = ModelFolder(model)
    return f"{folder.current().number} from {folder.oldest()}" if folder.exists() else ""


def _apart(folder: Path, listed: list[str]) -> str:
    found, expected = Counter(listing(folder)), Counter(listed)
    return f"too many {[*(found - expected)]}, missing {[*(expected - found)]}"


def _damage(model: Path) -> str:
    """Say what is wrong with any version that undo can reach."""
    folder, whole = ModelFolder(model), set[str]()
    try:
        for version in folder.history():
            folder.require_whole(version, whole)
    except DafuseError as error:
        return str(error)
    return ""


def _last_line(ended: Ended) -> str:
    lines = (ended.err.strip() or ended.out.strip()).splitlines()
    return f"status {ended.status}: {lines[-1] if lines else 'no word'}"

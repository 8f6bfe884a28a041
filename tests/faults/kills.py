"""SIGKILL at any moment, and before and in the midst of every call that changes the disk.

Seeds with an odd number walk through the calls of the quick commands, one after the other, so that
a thousand seeds in a row kill each command at each of its calls. All else is drawn.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

from faults.changes import CHANGES, Change, Known
from faults.command import Hangs
from faults.disk_calls import Dying, DyingAfter, Fault, install
from faults.research import RESEARCH, KnownResearch, Research
from faults.trial import Outcome, Trial
from faults.world import World

AT_ANY_MOMENT = 0.25  # share of the kills that wait for no call
KILLED: list[Change | Research] = [*CHANGES, *RESEARCH]
WALKED = [change for change in CHANGES if change.share == 1]


class Kills:
    """Each trial kills one command once, and asks what is left."""

    def __init__(self, place: Path) -> None:
        self.world = World(place)
        self._known: dict[Change | Research, Known | KnownResearch] = {}

    def trials(self, seed: int) -> Iterator[Trial]:
        random = Random(seed)
        if seed % 2:
            lap, turn = divmod(seed // 2, len(WALKED))
            yield self.killed(WALKED[turn], random, seed, lap)
        else:
            (change,) = random.choices(KILLED, [one.share for one in KILLED])
            yield self.killed(change, random, seed)

    def killed(
        self, change: Change | Research, random: Random, seed: int, call: int | None = None
    ) -> Trial:
        """Kill this command once: at this call of the disk, or at a moment that is drawn."""
        known = self._of(change)
        fault = _fault(random, known, call)
        there = known.fresh()
        fault.below = str(there)
        try:
            ended = change.do(self.world, there, partial(install, fault))
            found = known.wrong(there, ended)
        except Hangs as hangs:
            found = Outcome.WRONG, str(hangs)
        if found is None:
            return Trial(change.what, seed)
        return Trial(change.what, seed, found[0], f"{_at(fault, known)}: {found[1]}")

    def close(self) -> None:
        pass

    def _of(self, change: Change | Research) -> Known | KnownResearch:
        if change not in self._known:
            make = Known if isinstance(change, Change) else KnownResearch
            self._known[change] = make(self.world, change)  # type: ignore[arg-type]
        return self._known[change]


def _fault(random: Random, known: Known | KnownResearch, call: int | None) -> Fault:
    if call is not None:
        return Dying("", 1 + call % len(known.calls), random.random() < 0.5)
    if random.random() < AT_ANY_MOMENT:
        return DyingAfter("", random.uniform(0, known.seconds))
    return Dying("", random.randint(1, len(known.calls)), random.random() < 0.5)


def _at(fault: Fault, known: Known | KnownResearch) -> str:
    """The moment, in words."""
    if isinstance(fault, DyingAfter):
        return f"killed after {fault.seconds:.3f} of {known.seconds:.3f} s"
    assert isinstance(fault, Dying)
    name, path, _ = known.calls[fault.number - 1]
    when = "amidst" if fault.midway else "before"
    return f"killed {when} call {fault.number} of {len(known.calls)}, {name} {path}"

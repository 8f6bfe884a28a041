"""Fair measurement: the variants of one thing take turns in one process, round by round.

If the machine slows down, it slows all of them. A ratio is taken within each round, between
neighbouring measurements; the median over rounds counts, and the extremes show how far to trust it.
"""

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dafuse.errors import DafuseError
from dafuse.progress import Bar

Relation = Literal["speed-up", "share", "difference"]


@dataclass
class Measured:
    """The value of each round, or the reason why there is none."""

    values: list[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Goal:
    """A bound on the ratio to the baseline, or on the value itself."""

    of: Literal["ratio", "value"]
    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool:
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class BenchRow:
    """A line of the table: medians over the rounds, and the ratios within each round."""

    what: str
    unit: str  # "images/s", "s", "B", "%"
    measured: Measured
    baseline: str = ""  # what it is compared with
    relation: Relation = "speed-up"
    ratios: tuple[float, ...] = ()
    goal: Goal | None = None
    note: str = ""

    @property
    def value(self) -> float | None:
        return statistics.median(self.measured.values) if self.measured.values else None

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Tell whether the goal is met; None without a goal or a measurement."""
        found = None if self.goal is None else self.ratio if self.goal.of == "ratio" else self.value
        return None if self.goal is None or found is None else self.goal.met(found)

    def as_json(self) -> dict[str, Any]:
        values, goal = self.measured.values, self.goal
        return {
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "low": min(values, default=None),
            "high": max(values, default=None),
            "rounds": values,
            "baseline": self.baseline or None,
            "relation": self.relation if self.baseline else None,
            "ratio": self.ratio,
            "ratio_low": min(self.ratios, default=None),
            "ratio_high": max(self.ratios, default=None),
            "goal": goal and {"of": goal.of, "least": goal.least, "most": goal.most},
            "met": self.met,
            "note": self.note,
            "error": self.measured.error or None,
        }


def alternate(
    variants: Mapping[str, Callable[[], float]],
    rounds: int,
    bar: Bar | None = None,
    warm_up: Collection[str] = (),
) -> dict[str, Measured]:
    """Measure every variant once in each round. A variant that fails is skipped from then on.

    Variants that need warming up run once before, without being counted.
    """
    measured = {name: Measured() for name in variants}
    for number in range(-1, rounds):
        for name, measure in variants.items():
            if measured[name].error or (number < 0 and name not in warm_up):
                continue
            try:
                value = float(measure())
            except Exception as error:  # the other variants are still worth measuring
                measured[name] = Measured(error=reason(error))
                continue
            if number >= 0:
                measured[name].values.append(value)
            if bar is not None:
                bar.advance(note=name)
    return measured


def compared(
    what: str,
    unit: str,
    measured: Measured,
    baseline: tuple[str, Measured] | None = None,
    relation: Relation = "speed-up",
    goal: Goal | None = None,
    note: str = "",
) -> BenchRow:
    """Return a row with its ratio to the baseline, taken round by round."""
    if baseline is None:
        return BenchRow(what, unit, measured, goal=goal, note=note)
    name, base = baseline
    takes_time = not unit.endswith("/s")
    ratios = []
    for value, other in zip(measured.values, base.values, strict=False):  # one may have failed
        if relation == "difference":
            ratios.append(value - other)
        elif relation == "speed-up" and takes_time:
            ratios.append(other / value)
        else:
            ratios.append(value / other)
    return BenchRow(what, unit, measured, name, relation, tuple(ratios), goal, note)


def reason(error: Exception) -> str:
    """Return one line that says why something failed."""
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, DafuseError) else f"{type(error).__name__}: {text}"

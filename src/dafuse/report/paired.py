"""Differences to DAF over the same seeds: what a method gains or loses on one class order.

A seed moves all methods together, since it decides the class order; the difference on each seed
says more than two means do. With n pairs the interval is that of Student's t with n - 1 degrees of
freedom, at 95 %.
"""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dafuse.report.measures import COLUMNS
from dafuse.report.runs import RunResult
from dafuse.report.settings import SeedGroup, changed_options, group_runs, options_of
from dafuse.report.tables import UNKNOWN

REFERENCE = "daf"
PAIRED = ("average", "final")
CONFIDENCE = 0.95


class SeedSpread(NamedTuple):
    """Mean and sample std over seeds, and half of the width of the mean's interval."""

    mean: float
    std: float
    margin: float


@dataclass(frozen=True)
class Pairing:
    name: str
    reference: str
    seeds: list[int]  # that both have
    differences: dict[str, SeedSpread]  # of the columns `PAIRED`: this one less the reference
    missing: dict[str, list[int]]  # whose run is missing for which seeds


def pairings(runs: Iterable[RunResult]) -> list[Pairing]:
    """Every setting beside DAF on the same stream, where DAF has several seeds."""
    streams: dict[str, list[SeedGroup]] = {}
    for group in group_runs(runs):
        streams.setdefault(_stream(group.runs[0]), []).append(group)
    pairs = []
    for groups in streams.values():
        candidates = [
            g for g in groups if g.runs[0].config.method == REFERENCE and g.runs[0].primary
        ]
        if not candidates:
            continue
        reference = min(candidates, key=lambda group: len(changed_options(group.runs[0])))
        if len(by_seed(reference)) > 1:
            pairs += [_pairing(group, reference) for group in groups if group is not reference]
    return pairs


def header() -> list[str]:
    columns = [COLUMNS[key].title for key in PAIRED]
    both = [text for title in columns for text in (title, f"{title}, 95 % interval")]
    return ["Difference", "Pairs", *both, "Missing"]


def plain_rows(pairs: Iterable[Pairing]) -> list[list[str]]:
    """Every row as readable text, under `header()`."""
    return [
        [
            f"{pair.name} less {pair.reference}",
            str(len(pair.seeds)),
            *(text for key in PAIRED for text in _shown(pair.differences[key])),
            "; ".join(f"{who}: {', '.join(map(str, s))}" for who, s in pair.missing.items())
            or "none",
        ]
        for pair in pairs
    ]


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the t that a Student variable exceeds in size with probability 1 - ``confidence``."""
    from scipy.special import stdtrit  # as scipy.stats.t.ppf, which is slow to import

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _stream(run: RunResult) -> str:
    """All that must be equal but the method: data, backbone, increment, how far it is."""
    shared = {k: v for k, v in options_of(run).items() if not k.startswith("method.")}
    return json.dumps([len(run.matrix), run.tasks_total, shared], sort_keys=True)


def by_seed(group: SeedGroup) -> dict[int, dict[str, float]]:
    """The paired columns of each seed; of a seed that was run twice, the mean."""
    runs: dict[int, list[dict[str, float]]] = {}
    for run in group.runs:
        if run.config.seed is not None:
            runs.setdefault(run.config.seed, []).append(run.matrix.metrics())
    return {
        seed: {key: statistics.fmean(each[key] for each in several) for key in PAIRED}
        for seed, several in runs.items()
    }


def _pairing(group: SeedGroup, reference: SeedGroup) -> Pairing:
    ours, theirs = by_seed(group), by_seed(reference)
    seeds = sorted(ours.keys() & theirs.keys())
    differences = {
        key: spread_of([ours[seed][key] - theirs[seed][key] for seed in seeds]) for key in PAIRED
    }
    absent = {
        group.name: sorted(theirs.keys() - ours.keys()),
        reference.name: sorted(ours.keys() - theirs.keys()),
    }
    missing = {name: seeds for name, seeds in absent.items() if seeds}
    return Pairing(group.name, reference.name, seeds, differences, missing)


def spread_of(values: list[float]) -> SeedSpread:
    """Return mean, std and margin of the values that are known."""
    known = [value for value in values if not math.isnan(value)]
    mean = statistics.fmean(known) if known else math.nan
    if len(known) < 2:
        return SeedSpread(mean, math.nan, math.nan)
    std = statistics.stdev(known)
    margin = t_quantile(len(known) - 1) * std / math.sqrt(len(known))
    return SeedSpread(mean, std, margin)


def _shown(difference: SeedSpread) -> tuple[str, str]:
    mean, std, margin = difference
    if math.isnan(mean):
        return UNKNOWN, UNKNOWN
    if math.isnan(margin):
        return f"{mean:+.2f}", UNKNOWN
    return f"{mean:+.2f} ± {std:.2f}", f"{mean - margin:+.2f} to {mean + margin:+.2f}"

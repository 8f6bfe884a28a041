"""Mean, std and interval of each setting that was run with several seeds.

With n seeds the interval of the mean is that of Student's t with n - 1 degrees of freedom, at 95 %.
"""

import math
from collections.abc import Iterable

from dafuse.report.measures import COLUMNS
from dafuse.report.paired import PAIRED, SeedSpread, by_seed, spread_of
from dafuse.report.runs import RunResult
from dafuse.report.settings import group_runs
from dafuse.report.tables import UNKNOWN


def header() -> list[str]:
    titles = [COLUMNS[key].title for key in PAIRED]
    return ["Method", "Seeds", *(t for title in titles for t in (title, f"{title}, 95 % interval"))]


def plain_rows(runs: Iterable[RunResult]) -> list[list[str]]:
    """Every setting with several seeds as readable text, under `header()`."""
    rows = []
    for group in group_runs(runs):
        seeds = by_seed(group)
        if len(seeds) > 1:
            spreads = [spread_of([found[key] for found in seeds.values()]) for key in PAIRED]
            rows.append(
                [group.label, str(len(seeds)), *(t for one in spreads for t in _shown(one))]
            )
    return rows


def _shown(spread: SeedSpread) -> tuple[str, str]:
    mean, std, margin = spread
    if math.isnan(margin):
        return UNKNOWN, UNKNOWN
    return f"{mean:.2f} ± {std:.2f}", f"{mean - margin:.2f} to {mean + margin:.2f}"

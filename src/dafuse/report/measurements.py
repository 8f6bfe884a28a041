"""What was measured of DAF's approximations at a recorded run: read back, and as tables.

`experiments.approximations` says how it is measured; here is what its numbers are called.
"""

import math
import os
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dafuse.errors import DafuseError
from dafuse.sealed import read_sealed
from dafuse.shapes import COUNT, NUMBER, Each, Keys, Maybe, require_shape

FILE = "approximations.json"
FORMAT = 1  # the one that is written, and read
COMPARED = {  # which numbers stand for which, and what they are called
    "fisher_signs": "Fisher for Hessian (random signs)",
    "fisher_exact": "Fisher for Hessian (exact)",
    "signs_exact": "random signs for exact Hessian",
    "rule_exact": "α r + 1 (Eq. 13) for Hessian (exact)",
    "batch_sample": "Fisher by batches for by samples",
}
MODELS = {  # of the loss along the path: itself, and parabolas by what they bend with
    "true": "true loss",
    "fisher": "Fisher diagonal",
    "diagonal": "Hessian diagonal",
    "hessian": "whole Hessian",
    "rule": "α r + 1 (Eq. 13)",
}
AGREEMENT = (
    *("Compared", "Part", "Entries", "Rank correlation", "Cosine", "Ratio of sums"),
    "Negative (%)",
)
AGREES = ("rank_correlation", "cosine", "ratio_of_sums", "negative")
TASK = Keys(
    {
        "task": COUNT,
        "agreement": Keys(
            dict.fromkeys(COMPARED, Each(Keys({"entries": COUNT, **dict.fromkeys(AGREES, NUMBER)})))
        ),
        "path": Maybe(Each([NUMBER])),
    },
    {"sampled": Keys(dict.fromkeys(("fisher", "exact"), Each([NUMBER]))), "seconds": NUMBER},
)
MEASURED = Keys(
    {
        "options": Keys(dict.fromkeys(("images", "probes", "coordinates"), COUNT)),
        "planned": [COUNT],
        "tasks": [TASK],
    }
)
Row = list[str]


def read_measurement(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What was measured at a run's record so far, if anything."""
    path = Path(folder) / FILE
    found = read_measured(path)
    if found is None:
        return None
    missing = {"options", "planned", "tasks"} - found.keys()
    if missing:
        raise DafuseError(f"{path} lacks {', '.join(sorted(missing))}; delete it to measure again")
    try:
        require_shape(found, MEASURED)
        _require_alike(found["tasks"])
    except ValueError as error:
        raise DafuseError(f"{path} is damaged: {error}; delete it to measure again") from None
    return found


def _require_alike(tasks: list[dict[str, Any]]) -> None:
    """Refuse tasks of which other parts were measured, and paths without an end."""
    for task in tasks:
        for key in COMPARED:
            if task["agreement"][key].keys() != tasks[0]["agreement"][key].keys():
                raise ValueError(f"{key} was measured of other parts at each task")
        if path := task["path"]:
            lengths = {len(path.get(name, ())) for name in ("shares", *MODELS)}
            if len(lengths) > 1 or 0 in lengths:
                raise ValueError("a path has not a number for each share")


def read_measured(path: Path) -> dict[str, Any] | None:
    """The measurement in this file, if there is one; refuse one that cannot be gone on with."""
    if not path.is_file():
        return None
    found = read_sealed(path, "delete it to measure again", path.parent)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DafuseError(f"{path} is not of this version of dafuse; delete it to measure again")
    return found


def readable_measurement(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The same for a report, which goes on without what is damaged."""
    try:
        return read_measurement(folder)
    except DafuseError:
        return None


def damages(folders: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """What keeps measurements in these folders from being read."""
    for folder in folders:
        try:
            read_measurement(folder)
        except DafuseError as error:
            yield str(error)


def how_measured(found: dict[str, Any]) -> str:
    """On what, and what is missing."""
    numbers = [str(task["task"] + 1) for task in found["tasks"]]
    options = found["options"]
    missing = len(found["planned"]) - len(numbers)
    return (
        f"Measured at the adapters of task{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}, "
        f"on at most {options['images']} training images of each, {options['probes']} vectors of "
        f"random signs and {options['coordinates']} exact entries for each tensor."
        + (f" Missing: {missing} of {len(found['planned'])} tasks." if missing else "")
    )


def agreement_rows(found: dict[str, Any]) -> list[Row]:
    """Under `AGREEMENT`: the mean over the tasks, and the range where there are several."""
    rows = []
    for key, name in COMPARED.items():
        parts = [task["agreement"][key] for task in found["tasks"]]
        for part in parts[0] if parts else ():
            values = [numbers[part] for numbers in parts]
            rows.append(
                [
                    name,
                    part,
                    f"{values[0]['entries']}",
                    _over(v["rank_correlation"] for v in values),
                    _over(v["cosine"] for v in values),
                    _over(v["ratio_of_sums"] for v in values),
                    _over((100 * v["negative"] for v in values), "{:.0f}"),
                ]
            )
    return rows


def path_rows(found: dict[str, Any]) -> tuple[Row, list[Row]]:
    """Head and rows: what each parabola makes of the change of the loss from θ_t to θ*_t."""
    paths = [(task["task"] + 1, task["path"]) for task in found["tasks"] if task["path"]]
    head = ["Task", "Loss at θ_t", "at θ*_t", *(f"by {MODELS[m]}" for m in list(MODELS)[1:])]
    rows = [
        [str(number), f"{path['true'][0]:.4g}", *(f"{path[model][-1]:.4g}" for model in MODELS)]
        for number, path in paths
    ]
    return head, rows


def _over(values: Iterable[float], form: str = "{:.3g}") -> str:
    """Mean (lowest to highest) of what is known."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    mean = form.format(statistics.fmean(known))
    if len(known) == 1:
        return mean
    return f"{mean} ({form.format(min(known))} to {form.format(max(known))})"

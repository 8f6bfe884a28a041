"""What the JSON files of a run can say, and what they cannot: tested by whoever reads them.

A number that is impossible was not measured: more right than shown, a task that does not exist.
"""

from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

from dafuse.engine.matrix import AccuracyMatrix
from dafuse.shapes import (
    AMOUNT,
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    WORD,
    Each,
    Keys,
    Kind,
    Maybe,
    require_shape,
)

QUANTILES = Keys(dict.fromkeys(("5", "25", "50", "75", "95"), NUMBER))
DIAGNOSIS = Keys(
    optional={
        "beta": [Keys({"layer": COUNT}, {"mean": Maybe(NUMBER), "quantiles": Each(NUMBER)})],
        "moved": Each(Maybe(NUMBER)),
        "bound": Each(Maybe(NUMBER)),
        **dict.fromkeys(("clipped_low", "clipped_high"), Maybe(NUMBER)),
        **{f"{kind}_abs_gradient_over_displacement": Maybe(NUMBER) for kind in ("mean", "median")},
    }
)
SHORTEST, LONGEST = 1e-12, 1000 * 366 * 24 * 3600.0  # seconds that a clock can have measured
SECONDS = Kind(
    "a number of seconds from 0 to a thousand years",
    lambda value: AMOUNT.holds(value) and (value == 0 or SHORTEST <= value <= LONGEST),
)
TASK = Keys(
    {"seconds": Each(SECONDS)},
    {
        "images": Each(COUNT),
        "kept_bytes": Maybe(Each(AMOUNT)),
        "loss": Maybe([NUMBER]),
        "calibration_error": Maybe(AMOUNT),
        "correct_then": Maybe([COUNT]),
        "diagnosis": Maybe(DIAGNOSIS),
    },
)
METHOD = Keys(
    optional={
        "passes_per_prediction": Maybe(AMOUNT),
        "keeps_images": Maybe(FLAG),
        "assumes": Maybe(WORD),
        "prediction": Maybe(WORD),
        "defaults": Maybe(Each(ANYTHING)),
    }
)
RESULTS = Keys(
    {
        "tasks_total": COUNT,
        "classes": [WORD],
        "task_sizes": [COUNT],
        "correct": [[COUNT]],
        "total": [[COUNT]],
        "tasks": [TASK],
    },
    {
        "status": WORD,
        "confusion": Maybe([[COUNT]]),
        "skipped": Maybe([WORD]),
        "method": METHOD,
        "others": Maybe(Each([[COUNT]])),
    },
)
CONFIG = Keys(
    {"method": Keys({"name": WORD}), "data": Keys({"name": WORD})},
    {
        **dict.fromkeys(("backbone", "stream", "precision"), WORD),
        **dict.fromkeys(("replay", "out"), Maybe(WORD)),
        "seed": Maybe(COUNT),
    },
)
PROVENANCE = Keys(
    optional={
        "versions": Each(WORD),
        "images": Each(COUNT),
        "weights": Each(WORD),
        **dict.fromkeys(("command", "started", "device", "data_fingerprint", "reading"), WORD),
    }
)
INPUTS = Keys({"weights": Keys({"sha256": WORD}), "data_fingerprint": WORD})
CHECKPOINT = Keys({"task": COUNT, "sha256": WORD, "results": RESULTS})


def accuracy_matrices(results: Any) -> tuple[AccuracyMatrix, dict[str, AccuracyMatrix]]:
    """The counts of a run's results, and those by its other ways to predict.

    Raises a ValueError that says which of the results cannot be.
    """
    require_shape(results, RESULTS)
    tasks, sizes, classes = (results[key] for key in ("tasks_total", "task_sizes", "classes"))
    if len(sizes) != tasks or sum(sizes) != len(classes):
        raise ValueError(f"{tasks} tasks of {len(classes)} classes, but the sizes {sizes}")
    for name, times in Counter(classes).most_common(1):
        if times > 1:
            raise ValueError(f"{times} classes are called {name!r}")
    matrix = _matrix(results["correct"], results["total"])
    if len(matrix) > tasks:
        raise ValueError(f"{len(matrix)} rows of counts, but {tasks} tasks")
    if len(results["tasks"]) != len(matrix):
        raise ValueError(f"{len(matrix)} rows of counts, but {len(results['tasks'])} tasks")
    others = results.get("others") or {}
    for t, task in enumerate(results["tasks"]):
        then = task.get("correct_then") or []
        if then and len(then) != t + 1:
            raise ValueError(f"tasks[{t}].correct_then counts {len(then)} tasks, not {t + 1}")
        _require_possible(then, matrix.total[t][: len(then)], f"tasks[{t}].correct_then")
        for layer in (task.get("diagnosis") or {}).get("beta") or []:
            if layer.get("quantiles"):
                require_shape(layer["quantiles"], QUANTILES, f"tasks[{t}].diagnosis.beta")
    _require_counted(results.get("confusion") or [], sizes, matrix)
    return matrix, {way: _matrix(right, results["total"], way) for way, right in others.items()}


def _matrix(correct: list[list[int]], total: list[list[int]], way: str = "") -> AccuracyMatrix:
    by = f" by {way}" if way else ""
    if len(correct) != len(total):
        raise ValueError(f"{len(total)} rows of totals, but {len(correct)} of what was right{by}")
    matrix = AccuracyMatrix()
    for right, count in zip(correct, total, strict=True):
        matrix.add(right, count)
        _require_possible(right, count, f"after task {len(matrix)}{by}")
        if count[:-1] != (matrix.total[-2] if len(matrix) > 1 else []):
            raise ValueError(f"after task {len(matrix)} earlier tasks have other test images")
    return matrix


def _require_counted(confusion: list[list[int]], sizes: list[int], matrix: AccuracyMatrix) -> None:
    """Refuse a confusion of other classes or images than those after the latest task."""
    if not confusion:
        return  # runs of older versions may have none
    edges = list(accumulate(sizes[: len(matrix)], initial=0))
    if len(confusion) != edges[-1] or any(len(row) != edges[-1] for row in confusion):
        raise ValueError(f"confusion is not a square of the {edges[-1]} classes that were learned")
    for t, (first, end) in enumerate(pairwise(edges)):
        shown = sum(sum(row) for row in confusion[first:end])
        right = sum(confusion[c][c] for c in range(first, end))
        for found, told, what in (
            (shown, matrix.total[-1][t], "test images"),
            (right, matrix.correct[-1][t], "right answers"),
        ):
            if found != told:
                raise ValueError(
                    f"confusion has {found:,} {what} of task {t + 1}, but {told:,} are counted"
                )


def _require_possible(right: list[int], count: list[int], where: str) -> None:
    for one, shown in zip(right, count, strict=True):
        if one > shown:
            raise ValueError(f"{where}: {one:,} right of {shown:,}")

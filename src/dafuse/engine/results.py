"""A run's results: one record, which the engine writes after each task and whoever reads it parses.

    results = Results.parsed(read_sealed(file, remedy))    # ValueError: which entry cannot be
    write_sealed(file, results.as_json())

A number that is impossible was not measured: more right than shown, a task that does not exist. The
shapes of a run's other JSON files are here, too. No torch here.
"""

from collections import Counter
from dataclasses import dataclass, field
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
    JsonRecord,
    Keys,
    Kind,
    Maybe,
    require_shape,
)

FORMAT = 1  # of a run's JSON files: the one that is written, and the newest that is read
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
        "compiled_deviation": Maybe(NUMBER),
        "diagnosis": Maybe(DIAGNOSIS),
        "devices": Maybe(COUNT),
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


@dataclass(frozen=True)
class Declared(JsonRecord):
    """The method's own declarations; None where the run does not tell."""

    passes_per_prediction: float | None = None
    keeps_images: bool | None = None
    assumes: str | None = None
    prediction: str = ""  # the way to predict that is counted, where there are several
    defaults: dict[str, Any] | None = None  # of its options


@dataclass(frozen=True)
class FinishedTask(JsonRecord):
    """The numbers of one task; empty where they are not known."""

    seconds: dict[str, float] = field(default_factory=dict)  # of each phase
    images: dict[str, int] = field(default_factory=dict)  # in each phase
    kept_bytes: dict[str, int] = field(default_factory=dict)  # of each kind, after it
    loss: list[float] = field(default_factory=list)  # of each epoch
    calibration_error: float | None = None  # None without test images
    correct_then: list[int] = field(default_factory=list)  # right among the classes of their time
    compiled_deviation: float | None = None  # of compiled features from plain ones
    diagnosis: dict[str, Any] = field(default_factory=dict)  # what the method measured
    devices: int = 1  # that shared the work


@dataclass
class Results:
    """The counts, times and diagnoses of a run, as far as it is."""

    classes: list[str]
    task_sizes: list[int]
    skipped: list[str]  # images, and why
    matrix: AccuracyMatrix = field(default_factory=AccuracyMatrix)
    confusion: list[list[int]] = field(default_factory=list)  # after the latest task, if known
    declared: Declared = field(default_factory=Declared)
    tasks: list[FinishedTask] = field(default_factory=list)
    others: dict[str, AccuracyMatrix] = field(default_factory=dict)  # by other ways to predict

    @property
    def tasks_total(self) -> int:
        return len(self.task_sizes)

    @property
    def finished(self) -> bool:
        return len(self.tasks) == self.tasks_total

    def add(self, correct: list[int], total: list[int], others: dict[str, list[int]]) -> None:
        """Add a task's counts, by the method's way to predict and by its other ways."""
        before = list(self.matrix.total)  # without test images, if another way comes first now
        self.matrix.add(correct, total)
        for way, right in others.items():
            none = AccuracyMatrix([[0] * len(row) for row in before], list(before))
            self.others.setdefault(way, none).add(right, total)

    def as_json(self) -> dict[str, Any]:
        others = {way: counts.correct for way, counts in self.others.items()}
        return {
            "format": FORMAT,
            "status": "finished" if self.finished else "running",
            "tasks_total": self.tasks_total,
            "classes": self.classes,
            "task_sizes": self.task_sizes,
            "correct": self.matrix.correct,
            "total": self.matrix.total,
            "confusion": self.confusion,
            "skipped": self.skipped,
            "method": self.declared.as_json(),
            "tasks": [{"task": t, **task.as_json()} for t, task in enumerate(self.tasks)],
            **({"others": others} if others else {}),
        }

    @classmethod
    def parsed(cls, content: Any) -> "Results":
        """Return the record; raise a ValueError that says which of the results cannot be."""
        require_shape(content, RESULTS)
        matrix = _matrix(content["correct"], content["total"])
        others = content.get("others") or {}
        results = cls(
            content["classes"],
            content["task_sizes"],
            content.get("skipped") or [],
            matrix,
            content.get("confusion") or [],
            Declared.parsed(content.get("method", {})),
            [FinishedTask.parsed(task) for task in content["tasks"]],
            {way: _matrix(right, matrix.total, way) for way, right in others.items()},
        )
        _require_together(results, content["tasks_total"])
        return results


def _require_together(results: Results, tasks: int) -> None:
    """Refuse parts that do not fit each other."""
    matrix, sizes, classes = results.matrix, results.task_sizes, results.classes
    if len(sizes) != tasks or sum(sizes) != len(classes):
        raise ValueError(f"{tasks} tasks of {len(classes)} classes, but the sizes {sizes}")
    for name, times in Counter(classes).most_common(1):
        if times > 1:
            raise ValueError(f"{times} classes are called {name!r}")
    if len(matrix) > tasks:
        raise ValueError(f"{len(matrix)} rows of counts, but {tasks} tasks")
    if len(results.tasks) != len(matrix):
        raise ValueError(f"{len(matrix)} rows of counts, but {len(results.tasks)} tasks")
    for t, task in enumerate(results.tasks):
        then = task.correct_then
        if then and len(then) != t + 1:
            raise ValueError(f"tasks[{t}].correct_then counts {len(then)} tasks, not {t + 1}")
        _require_possible(then, matrix.total[t][: len(then)], f"tasks[{t}].correct_then")
        for layer in task.diagnosis.get("beta") or []:
            if layer.get("quantiles"):
                require_shape(layer["quantiles"], QUANTILES, f"tasks[{t}].diagnosis.beta")
    _require_counted(results.confusion, sizes, matrix)


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

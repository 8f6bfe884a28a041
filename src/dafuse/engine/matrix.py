"""The accuracy matrix A[t, j], stored as raw counts, and all metrics computed from it.

Row t has, for each task j <= t, the number of test images of task j answered right after learning
task t. In a stream without tasks, a task is a segment between two points of evaluation; its test
images are those of the classes that first appear in it, possibly none. Accuracies are in percent.
"Per sample" pools the test images of all seen classes, as in the literature's tables; "per task"
averages the tasks' accuracies, as in the DAF paper's formulas.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class AccuracyMatrix:
    correct: list[list[int]] = field(default_factory=list)
    total: list[list[int]] = field(default_factory=list)

    def add(self, correct: list[int], total: list[int]) -> None:
        """Add the counts on tasks 0..t after learning task t."""
        if len(correct) != len(self.correct) + 1 or len(total) != len(correct):
            raise ValueError(f"row {len(self.correct)} must count {len(self.correct) + 1} tasks")
        self.correct.append(list(correct))
        self.total.append(list(total))

    def __len__(self) -> int:
        return len(self.correct)

    def accuracies(self) -> np.ndarray:
        """Return A [T, T] in percent, NaN above the diagonal and for tasks without test images."""
        a_TT = np.full((len(self), len(self)), np.nan)
        for t, (correct, total) in enumerate(zip(self.correct, self.total, strict=True)):
            for j, (right, count) in enumerate(zip(correct, total, strict=True)):
                if count:
                    a_TT[t, j] = 100 * right / count
        return a_TT

    def curve_per_sample(self) -> list[float]:
        return [
            100 * sum(right) / sum(count) if sum(count) else float("nan")
            for right, count in zip(self.correct, self.total, strict=True)
        ]

    def curve_per_task(self) -> list[float]:
        return [_mean(row[: t + 1]) for t, row in enumerate(self.accuracies())]

    def metrics(self) -> dict[str, float]:
        """Return all metrics by name; `DEFINITIONS` defines each."""
        a_TT, last = self.accuracies(), len(self) - 1
        per_sample, per_task = self.curve_per_sample(), self.curve_per_task()
        forgetting = [
            np.nanmax(a_TT[j:, j]) - a_TT[last, j] for j in range(last) if self.total[j][j]
        ]
        return {
            "average": _mean(per_sample),
            "final": per_sample[-1] if per_sample else float("nan"),
            "average_per_task": _mean(per_task),
            "final_per_task": per_task[-1] if per_task else float("nan"),
            "stability": _mean(a_TT[last, :last]) if last > 0 else float("nan"),
            "plasticity": _mean(np.diagonal(a_TT)),
            "forgetting": _mean(forgetting),
        }


DEFINITIONS = {
    "average": "mean over tasks of the accuracy on all test images seen so far (per sample); "
    "without tasks, mean over the points of evaluation: the area under the curve",
    "final": "accuracy on all test images after the last task (per sample)",
    "average_per_task": "the same average, with each task's accuracy counted once (per task)",
    "final_per_task": "mean over tasks of the accuracy after the last task (per task)",
    "stability": "mean accuracy on the earlier tasks after the last one",
    "plasticity": "mean accuracy on each task right after it was learned",
    "forgetting": "mean drop of the earlier tasks from their best accuracy to their last",
}


def _mean(values: "list[float] | np.ndarray") -> float:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")

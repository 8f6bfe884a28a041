"""The measures of a run (accuracies, times, bytes), with their names and how they are written."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from dafuse.engine.matrix import DEFINITIONS
from dafuse.engine.results import FinishedTask
from dafuse.report.runs import RunResult

NAN = float("nan")


def measures(run: RunResult) -> dict[str, float]:
    """Every number of the table for one run, by column."""
    later = run.tasks[1:] or run.tasks  # the first task pays for compiling, once
    training = [task for task in later if task.images.get("train")]
    last = run.tasks[-1]
    errors = [task.calibration_error for task in run.tasks]
    known = [error for error in errors if error is not None]
    passes, images = run.declared.passes_per_prediction, run.declared.keeps_images
    return {
        **run.matrix.metrics(),
        "forgetting_alone": _forgetting_alone(run),
        "calibration_error": max(known, default=NAN),
        "train_speed": median(map(_learning_speed, training)) if training else NAN,
        "inference_speed": speed(last, "evaluate"),
        "seconds": NAN if run.replayed else run.seconds or NAN,
        "kept_bytes": float(sum(last.kept_bytes.values())) if last.kept_bytes else NAN,
        "keeps_images": NAN if images is None else float(images),
        "passes": float(passes) if passes else NAN,
    }


def _forgetting_alone(run: RunResult) -> float:
    """Forgetting, were no class answered that came after an image's task; NaN where unknown."""
    then, total = run.tasks[-1].correct_then, run.matrix.total[-1]
    a_TT, tested = run.matrix.accuracies(), [j for j in range(len(then) - 1) if total[j]]
    drops = [np.nanmax(a_TT[:, j]) - 100 * then[j] / total[j] for j in tested]
    return float(np.mean(drops)) if drops else NAN


def _learning_speed(task: FinishedTask) -> float:
    """Images in training steps per second of all phases but evaluation."""
    seconds = sum(task.seconds.values()) - task.seconds.get("evaluate", 0)
    return task.images["train"] / seconds if seconds else NAN


def speed(task: FinishedTask, phase: str) -> float:
    """Images per second of one phase of one task; NaN where it has no images."""
    images, seconds = task.images.get(phase), task.seconds.get(phase)
    return images / seconds if images and seconds else NAN


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"


def human_number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Column:
    title: str
    meaning: str
    show: Callable[[float], str] = "{:.2f}".format
    with_std: bool = True


COLUMNS = {
    "average": Column("Average", DEFINITIONS["average"]),
    "final": Column("Final", DEFINITIONS["final"]),
    "average_per_task": Column("Average (per task)", DEFINITIONS["average_per_task"]),
    "final_per_task": Column("Final (per task)", DEFINITIONS["final_per_task"]),
    "stability": Column("Stability", DEFINITIONS["stability"]),
    "plasticity": Column("Plasticity", DEFINITIONS["plasticity"]),
    "forgetting": Column("Forgetting", DEFINITIONS["forgetting"]),
    "forgetting_alone": Column(
        "Forgetting alone",
        "the same drop, were no class answered that came after the task: what is lost beyond the "
        "confusion with later classes",
    ),
    "calibration_error": Column(
        "Calibration error",
        "how far the probabilities (softmax of the scores) are from the share that is right: the "
        "expected calibration error over 15 bins, after the task where it is largest",
        "{:.3f}".format,
    ),
    "train_speed": Column(
        "Training images/s",
        "images in training steps per second of learning (all phases but evaluation): the median "
        "of the tasks that train, without the first, which pays for compiling, unless it is the "
        "only task",
        human_number,
    ),
    "inference_speed": Column(
        "Inference images/s",
        "test images per second in the evaluation after the last task; of a method with several "
        "ways to predict, by all of them together",
        human_number,
    ),
    "seconds": Column(
        "Seconds",
        "wall time of all phases of all tasks, with evaluation, where training was not replayed",
        human_number,
    ),
    "kept_bytes": Column(
        "Kept",
        "what must be kept beside the frozen backbone after the last task: modules, statistics, "
        "classifier, stored images",
        human_bytes,
        with_std=False,
    ),
    "keeps_images": Column(
        "Keeps images",
        "whether training images of earlier tasks are kept",
        lambda kept: "yes" if kept else "no",
        with_std=False,
    ),
    "passes": Column(
        "Passes",
        "forward passes through the backbone per prediction",
        "{:g}".format,
        with_std=False,
    ),
}

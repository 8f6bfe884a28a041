"""What a page says about one run: its figures, times, bytes, skipped images and settings."""

import math
from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

from dafuse.engine.config import flatten
from dafuse.report import approximations, run_figures
from dafuse.report.drawing import Drawing, NothingToDraw, own_names
from dafuse.report.measures import human_bytes, human_number
from dafuse.report.runs import RunResult
from dafuse.report.tables import UNKNOWN

FIGURES: tuple[tuple[Callable[[RunResult], Drawing], str, str], ...] = (
    (
        run_figures.accuracy_matrix,
        "Accuracy matrix",
        "Read down a column to see how a task's accuracy holds while later tasks are learned. "
        "The diagonal is each task right after it was learned.",
    ),
    (
        run_figures.confusion,
        "Most confused classes",
        "The classes most often taken for each other after the latest task, in percent of each "
        "true class. The diagonal is what was right; the rest went to classes that are not shown.",
    ),
    (
        run_figures.beta_per_layer,
        "Fusion coefficient by layer",
        "β near 0 takes the new task's value, β near ½ keeps the mean of the initial and the old "
        "global adapter. Right: from the 5 % to the 95 % quantile, with the middle half darker and "
        "the median as a stroke.",
    ),
    (
        run_figures.fusion_diagnosis,
        "Fusion over tasks",
        "How much of β met its limits, how much the gradient g weighed against the displacement D, "
        "and how far the global adapter moved relative to its own norm.",
    ),
    (
        run_figures.bound_terms,
        "Terms of the bound",
        "What the paper's bound trades off. It motivates the rule; for one set of fixed weights "
        "it guarantees nothing.",
    ),
    (run_figures.training_loss, "Training loss", "Mean loss of each epoch, task after task."),
    (
        approximations.loss_along_path,
        "Loss on the way to the fused adapter",
        "From the task's adapter to the fused one: the task's true training loss, and second-order "
        "models of it around the task's adapter. A model that leaves the axes is that far off.",
    ),
    (
        approximations.fisher_against_hessian,
        "Fisher and Hessian, entry by entry",
        "Random entries of each of the adapter's tensors in the last measured task. Hollow: the "
        "second derivative is negative.",
    ),
    (
        run_figures.seconds_per_phase,
        "Seconds per phase",
        "Wall time of each task. Evaluation grows since all seen classes are tested every time.",
    ),
)
KINDS = ("modules", "statistics", "classifier", "exemplars")  # of what is kept
SHOWN_SKIPPED = 100


def run_section(anchor: str, title: str, run: RunResult, alone: bool) -> str:
    drawn = "".join(
        html_figure(partial(draw, run), f"{anchor}-{number}", name, caption)
        for number, (draw, name, caption) in enumerate(FIGURES)
    )
    opened = " open" if alone else ""
    return (
        f'<section class="run" id="{anchor}">\n<h2>{escape(title)} {mark_of(run)}</h2>\n'
        f'<p class="soft">{_traits(run)}</p>\n<div class="figures">\n{drawn}'
        f'<div class="card"><h3>Time and speed</h3>{_phases(run)}\n'
        f"<h3>Kept beside the backbone</h3>{_kept(run)}</div></div>\n"
        f"{_measured(run)}{_skipped(run)}"
        f"<details{opened}><summary>Config</summary>{_settings(run.config.everything)}</details>\n"
        f"<details{opened}><summary>Provenance</summary>"
        f"{_settings(_origin(run))}"
        "</details>\n</section>\n"
    )


def _origin(run: RunResult) -> dict[str, Any]:
    return {**run.provenance.everything, "config_hash": run.hash, "folder": str(run.folder)}


def _traits(run: RunResult) -> str:
    passes, keeps = run.declared.passes, run.declared.keeps_images
    traits = [
        f"{passes:g} pass{'es' if passes != 1 else ''} per prediction" if passes else "",
        "" if keeps is None else f"keeps images: {'yes' if keeps else 'no'}",
        f"assumes {run.declared.assumes}" if run.declared.assumes else "",
        f"predicts by {run.prediction}" if run.prediction else "",
        f"also recorded by {', '.join(run.others)}" if run.others else "",
        f"on {run.provenance.device}" if run.provenance.device else "",
    ]
    return escape(" · ".join(trait for trait in traits if trait))


def _phases(run: RunResult) -> str:
    totals: dict[str, list[float]] = {}
    for task in run.tasks:
        for phase, seconds in task.seconds.items():
            total = totals.setdefault(phase, [0.0, 0.0])
            total[0] += seconds
            total[1] += task.images.get(phase, 0)
    everything = sum(seconds for seconds, _ in totals.values()) or math.nan
    rows = [
        [
            phase,
            human_number(seconds),
            f"{100 * seconds / everything:.1f} %",
            f"{images:.0f}" if images else UNKNOWN,
            human_number(images / seconds) if images and seconds else UNKNOWN,
        ]
        for phase, (seconds, images) in totals.items()
    ]
    return html_table(["Phase, all tasks", "Seconds", "Share", "Images", "Images/s"], rows)


def _kept(run: RunResult) -> str:
    first, last = (run.tasks[t].kept_bytes for t in (0, -1))
    kinds = sorted({*first, *last}, key=[*KINDS, *first, *last].index)
    rows = [[kind, *(human_bytes(kept.get(kind, 0)) for kept in (first, last))] for kind in kinds]
    sums = ["all", human_bytes(sum(first.values())), human_bytes(sum(last.values()))]
    return html_table(["Kind", "After the first task", "After the last"], [*rows, sums])


def _measured(run: RunResult) -> str:
    found = approximations.readable_measurement(run.folder)
    if found is None:
        return ""
    agreement = html_table(list(approximations.AGREEMENT), approximations.agreement_rows(found))
    return (
        "<h3>How good the approximations are</h3>"
        f'<p class="soft">{escape(approximations.how_measured(found))}</p>\n{agreement}\n'
        f"{html_table(*approximations.path_rows(found))}\n"
    )


def _skipped(run: RunResult) -> str:
    skipped = run.skipped
    if not skipped:
        return ""
    shown = "".join(f"<li>{escape(str(line))}</li>" for line in skipped[:SHOWN_SKIPPED])
    rest = len(skipped) - SHOWN_SKIPPED
    more = f"<li>and {rest} more</li>" if rest > 0 else ""
    return f'<h3>{len(skipped)} skipped images</h3><ul class="plain">{shown}{more}</ul>\n'


def _settings(settings: dict[str, Any]) -> str:
    return html_table(
        [], [[key, str(value)] for key, value in flatten(settings).items()], "settings"
    )


def mark_of(run: RunResult) -> str:
    return f'<span class="mark">{escape(run.mark)}</span>' if run.mark else ""


def html_table(head: list[str], rows: list[list[str]], kind: str = "") -> str:
    """The first column heads the rows. All text is escaped here."""
    top = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{with_deviation(text)}</td>" for text in rest)
        + "</tr>\n"
        for first, *rest in rows
    )
    thead = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f'<div class="scroll {kind}"><table>{thead}<tbody>\n{body}</tbody></table></div>'


def with_deviation(text: str) -> str:
    """Escaped, with what follows ± in small letters on its own line."""
    value, sign, deviation = escape(text).partition(" ± ")
    return f"{value}<small>± {deviation}</small>" if sign else value


def html_figure(
    make: Callable[[], Drawing], anchor: str, title: str, caption: str, wide: bool = False
) -> str:
    """The figure with its words, or "" where there is nothing to draw."""
    try:
        svg = make().svg()
    except NothingToDraw:
        return ""
    kind = ' class="wide"' if wide else ""
    return (
        f"<figure{kind}><h3>{escape(title)}</h3>\n{own_names(svg, anchor)}\n"
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )

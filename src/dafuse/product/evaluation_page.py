"""An evaluation as one HTML page: accuracy, confusion, worst mistakes, calibration, refusal.

The page is complete in itself: no script, nothing from the network, for screens light and dark.
Charts are SVG, in colours that are CSS variables of the page: readable in both forms.
"""

import base64
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import NamedTuple

import numpy as np
from PIL import Image

from dafuse import __version__
from dafuse.data.images import pixels_of
from dafuse.files import write_atomically
from dafuse.product.evaluation import Answered, Evaluation, Score
from dafuse.wording import counted

MATRIX = 24  # classes in the matrix at most; of more, those confused most
MISTAKES = 24  # images
PAIRS = 15  # of confused classes
THUMBNAIL = 168  # pixels, the longer side
UNKNOWN = "unknown"
BINS = 10  # of probabilities
WIDTH, HEIGHT = 420, 320
LEFT, TOP, RIGHT, BOTTOM = 56, 14, 26, 46  # margins
POINTS = 120  # of a curve at most


def write_evaluation_page(
    evaluation: Evaluation, path: str | os.PathLike[str], model: str, folder: str
) -> None:
    """Write the page.

    Args:
        evaluation: what `evaluate` found
        path: the .html file
        model: what was tested, by its name
        folder: where the images are
    """
    write_atomically(path, evaluation_page(evaluation, model, folder))


def evaluation_page(evaluation: Evaluation, model: str, folder: str) -> str:
    known = {score.name for score in evaluation.classes}
    of_known = [one for one in evaluation.answered if one.name in known]
    template = resources.files("dafuse.product").joinpath("evaluation_page.html")
    return Template(template.read_text(encoding="utf-8")).substitute(
        title=f"{escape(model)} on {escape(folder)}",
        tiles=_tiles(evaluation),
        matrix=_matrix(of_known, [score.name for score in evaluation.classes]),
        pairs=_pairs(of_known),
        mistakes=_mistakes(evaluation.answered, known),
        charts=_charts(of_known),
        classes=_classes(evaluation.classes),
        untaught=_untaught(evaluation.untaught),
        skipped=_skipped(evaluation.skipped),
        version=__version__,
    )


def _tiles(evaluation: Evaluation) -> str:
    tiles = [("images that could be read", f"{len(evaluation.answered)}")]
    if evaluation.images:
        tiles = [
            (
                f"of {counted(evaluation.images, 'image')} of "
                f"{counted(len(evaluation.classes), 'class', 'classes')} right",
                f"{evaluation.accuracy:.1%}",
            ),
            ("of them answered unknown, which counts as wrong", f"{evaluation.unknown:.1%}"),
            (
                "calibration error: how far probabilities are from the share that is right",
                f"{evaluation.calibration_error:.3f}",
            ),
        ]
    return "".join(
        f'<div class="tile"><b>{number}</b><span>{what}</span></div>' for what, number in tiles
    )


def _confusions(answered: Iterable[Answered]) -> Counter[tuple[str, str]]:
    """Count how often a class was answered with another, or with unknown."""
    return Counter((one.name, one.answer) for one in answered if one.answer != one.name)


def shown_in_matrix(answered: Iterable[Answered], classes: Sequence[str]) -> list[str]:
    """Return all classes, or those with the most confusions, in their order."""
    if len(classes) <= MATRIX:
        return list(classes)
    known, taking_part = set(classes), Counter[str]()
    for (true, other), count in _confusions(answered).items():
        taking_part[true] += count
        if other in known:
            taking_part[other] += count
    most = {name for name, _ in taking_part.most_common(MATRIX)}
    return [name for name in classes if name in most]


def _matrix(answered: Sequence[Answered], classes: Sequence[str]) -> str:
    if not classes:
        return "<p>None of these classes was taught.</p>"
    shown = shown_in_matrix(answered, classes)
    if not shown:
        return f"<p>No image was taken for another class, of {len(classes)} classes.</p>"
    counts = Counter((one.name, one.answer) for one in answered)
    images = Counter(one.name for one in answered)
    inside = set(shown)
    elsewhere = sorted({other for _, other in counts} - inside - {UNKNOWN})
    columns = [*shown, *(["another"] if elsewhere else []), UNKNOWN]
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in columns)
    rows = ""
    for true in shown:
        cells = [counts[true, other] for other in shown]
        if elsewhere:
            cells.append(sum(counts[true, other] for other in elsewhere))
        cells.append(counts[true, UNKNOWN])
        row = "".join(
            _cell(true, other, count, images[true])
            for other, count in zip(columns, cells, strict=True)
        )
        rows += f'<tr><th scope="row">{escape(true)}</th>{row}</tr>'
    note = (
        ""
        if len(shown) == len(classes)
        else f"<p>The {len(shown)} of {len(classes)} classes that take part in the most "
        "confusions.</p>"
    )
    return (
        f'{note}<div class="scroll"><table class="matrix"><thead><tr><th>true, then taken for'
        f"</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(true: str, other: str, count: int, images: int) -> str:
    if not count:
        return "<td></td>"
    kind = "hit" if true == other else "miss"
    said = f"{true} taken for {other}: {count} of {images}"
    return (
        f'<td class="{kind}" style="--share:{count / images:.2f}" title="{escape(said)}">{count}'
        "</td>"
    )


def _pairs(answered: Sequence[Answered]) -> str:
    named = [one for one in answered if not one.unknown]
    pairs = _confusions(named).most_common(PAIRS)
    images = Counter(one.name for one in answered)
    rows = [[true, other, f"{count} of {images[true]}"] for (true, other), count in pairs]
    return _table(["class", "taken for", "images"], rows, "Most confused") if rows else ""


def worst_mistakes(answered: Iterable[Answered]) -> list[Answered]:
    """Return images answered with another class, the most probable first; also if never taught."""
    wrong = [one for one in answered if not one.unknown and one.answer != one.name]
    return sorted(wrong, key=lambda one: -one.probability)[:MISTAKES]


def _mistakes(answered: Sequence[Answered], known: set[str]) -> str:
    worst = worst_mistakes(answered)
    if not worst:
        return "<p>No image was answered with the name of another class.</p>"
    figures = ""
    for one in worst:
        true = escape(one.name) + ("" if one.name in known else " <i>(never taught)</i>")
        alt = escape(f"{one.name}, taken for {one.answer}")
        title = escape(str(one.image)) if not isinstance(one.image, np.ndarray) else alt
        figures += (
            f'<figure><img src="{_thumbnail(one.image)}" alt="{alt}" title="{title}" '
            f"loading=lazy><figcaption><b>{true}</b><br>taken for {escape(one.answer)}, "
            f"{one.probability:.0%} sure</figcaption></figure>"
        )
    return f'<div class="mistakes">{figures}</div>'


def _thumbnail(image: object) -> str:
    """A small JPEG as a data URI."""
    small = Image.fromarray(pixels_of(image))  # type: ignore[arg-type]
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _charts(answered: Sequence[Answered]) -> str:
    if not answered:
        return "<p>There is no image of a class that the model knows.</p>"
    probability_N = np.array([one.probability for one in answered])
    familiarity_N = np.array([one.familiarity for one in answered])
    right_N = np.array([one.best == one.name for one in answered])
    unknown_N = np.array([one.unknown for one in answered])
    reliability = reliability_chart(probability_N, right_N)
    refusal = refusal_chart(probability_N, familiarity_N, right_N, unknown_N)
    return (
        f"<figure><h3>Are its probabilities true?</h3>{reliability}<figcaption>"
        "Images are grouped by the probability of their most probable class. On the dashed line, "
        "as many are right as the probability says. Bars: how many images a group has."
        f"</figcaption></figure><figure><h3>What does refusing gain?</h3>{refusal}"
        '<figcaption>The least sure images are refused first: by <b class="first">probability</b>, '
        'or by <b class="second">familiarity</b>, which is how the model answers unknown. The dot '
        "is the model as it is, where it refuses some.</figcaption></figure>"
    )


def _classes(scores: Sequence[Score]) -> str:
    ordered = sorted(scores, key=lambda one: (one.right / one.images, one.name))
    rows = [
        [one.name, f"{one.right / one.images:.1%}", f"{one.images}", f"{one.unknown}"]
        for one in ordered
    ]
    return _table(["class", "right", "images", "answered unknown"], rows) if rows else ""


def _untaught(scores: Sequence[Score]) -> str:
    if not scores:
        return ""
    rows = [[one.name, f"{one.unknown} of {one.images}"] for one in scores]
    table = _table(["class", "answered unknown"], rows)
    return f"<h2>Never taught</h2><p>Here unknown is the right answer.</p>{table}"


def _skipped(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>Skipped</h2><ul>{items}</ul>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


class Bin(NamedTuple):
    """Images whose probability is about the same."""

    images: int
    probability: float  # on average
    right: float  # share


def reliability_bins(probability_N: np.ndarray, right_N: np.ndarray) -> list[Bin]:
    """Bins of equal width that have images, from 0 to 1."""
    which_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    return [
        Bin(
            int((which_N == number).sum()),
            float(probability_N[which_N == number].mean()),
            float(right_N[which_N == number].mean()),
        )
        for number in range(BINS)
        if (which_N == number).any()
    ]


def refusal_curve(sure_N: np.ndarray, right_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share refused and accuracy of the others, where the least sure are refused first.

    Images that are equally sure are refused together.
    """
    order = np.argsort(-sure_N, kind="stable")
    sure_N, right_N = sure_N[order], right_N[order]
    kept_N = np.arange(1, len(order) + 1)
    accuracy_N = np.cumsum(right_N) / kept_N
    ends_N = np.append(sure_N[1:] != sure_N[:-1], True)
    return 1 - kept_N[ends_N] / len(order), accuracy_N[ends_N]


def reliability_chart(probability_N: np.ndarray, right_N: np.ndarray) -> str:
    """Draw the share that is right against the probability of the answer."""
    bins = reliability_bins(probability_N, right_N)
    most = max(one.images for one in bins)
    bars = "".join(
        f'<rect class="bar" x="{_x(one.probability) - 9:.1f}" '
        f'y="{_y(0.22 * one.images / most):.1f}" width="18" '
        f'height="{_y(0) - _y(0.22 * one.images / most):.1f}"/>'
        for one in bins
    )
    dots = "".join(
        f'<circle class="dot" cx="{_x(one.probability):.1f}" cy="{_y(one.right):.1f}" r="5">'
        f"<title>{one.images} images: {one.probability:.0%} sure, {one.right:.0%} right</title>"
        "</circle>"
        for one in bins
    )
    even = f'<path class="even" d="M{_x(0)},{_y(0)} L{_x(1)},{_y(1)}"/>'
    path = _path([(one.probability, one.right) for one in bins], "curve")
    axes = _axes("probability of the answer", "share that is right", 0.0)
    return _svg(axes + bars + even + path + dots, "Share that is right against probability")


def refusal_chart(
    probability_N: np.ndarray, familiarity_N: np.ndarray, right_N: np.ndarray, unknown_N: np.ndarray
) -> str:
    """Draw the accuracy against the share refused, by probability and by familiarity."""
    curves = [
        ("curve", refusal_curve(probability_N, right_N)),
        ("curve second", refusal_curve(familiarity_N, right_N)),
    ]
    lowest = min(float(accuracy.min()) for _, (_, accuracy) in curves)
    floor = min(0.9, np.floor(10 * lowest) / 10)
    drawn = _axes("share of the images refused", "share of the others that is right", floor)
    for kind, (refused, accuracy) in curves:
        which = np.unique(np.linspace(0, len(refused) - 1, POINTS).astype(int))
        drawn += _path(list(zip(refused[which], accuracy[which], strict=True)), kind, floor)
    if 0 < (refused_now := float(unknown_N.mean())) < 1:
        right = float(right_N[~unknown_N].mean())
        drawn += (
            f'<circle class="dot second" cx="{_x(refused_now):.1f}" cy="{_y(right, floor):.1f}" '
            f'r="5"><title>the model as it is: {refused_now:.1%} refused, {right:.1%} of the '
            "others right</title></circle>"
        )
    return _svg(drawn, "Accuracy against the share of images refused")


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float, floor: float = 0.0) -> float:
    return HEIGHT - BOTTOM - (share - floor) / (1 - floor) * (HEIGHT - TOP - BOTTOM)


def _path(points: Sequence[tuple[float, float]], kind: str, floor: float = 0.0) -> str:
    steps = " L".join(f"{_x(x):.1f},{_y(y, floor):.1f}" for x, y in points)
    return f'<path class="{kind}" d="M{steps}"/>'


def _axes(below: str, beside: str, floor: float) -> str:
    """Grid, ticks in percent, and what the axes are."""
    drawn = ""
    for step in range(6):
        share = step / 5
        height = floor + share * (1 - floor)
        x, y = _x(share), _y(height, floor)
        drawn += f'<path class="grid" d="M{_x(0)},{y:.1f} H{_x(1)} M{x:.1f},{_y(1)} V{_y(0)}"/>'
        drawn += f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{height:.0%}</text>'
        drawn += f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
        drawn += f"{share:.0%}</text>"
    middle = (TOP + HEIGHT - BOTTOM) / 2
    drawn += f'<text x="{_x(0.5):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{below}</text>'
    return drawn + (
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{beside}</text>"
    )


def _svg(inside: str, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'

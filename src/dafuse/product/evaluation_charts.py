"""Charts of an evaluation as SVG: whether probabilities are true, and what refusing images gains.

Colours are CSS variables of the page, so that a chart is readable in its light and dark form.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BINS = 10  # of probabilities
WIDTH, HEIGHT = 420, 320
LEFT, TOP, RIGHT, BOTTOM = 56, 14, 26, 46  # margins
POINTS = 120  # of a curve at most


class ChartedAnswers(NamedTuple):
    """Images of classes that the model knows, and what they were answered."""

    probability_N: np.ndarray  # of the most probable class
    familiarity_N: np.ndarray
    right_N: np.ndarray  # the most probable class is theirs
    unknown_N: np.ndarray  # were answered "unknown"


class Bin(NamedTuple):
    """Images whose probability is about the same."""

    images: int
    probability: float  # on average
    right: float  # share


def reliability(answers: ChartedAnswers) -> list[Bin]:
    """Bins of equal width that have images, from 0 to 1."""
    which_N = np.minimum((answers.probability_N * BINS).astype(int), BINS - 1)
    return [
        Bin(
            int((which_N == number).sum()),
            float(answers.probability_N[which_N == number].mean()),
            float(answers.right_N[which_N == number].mean()),
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


def reliability_chart(answers: ChartedAnswers) -> str:
    bins = reliability(answers)
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


def refusal_chart(answers: ChartedAnswers) -> str:
    curves = [
        ("curve", refusal_curve(answers.probability_N, answers.right_N)),
        ("curve second", refusal_curve(answers.familiarity_N, answers.right_N)),
    ]
    lowest = min(float(accuracy.min()) for _, (_, accuracy) in curves)
    floor = min(0.9, np.floor(10 * lowest) / 10)
    drawn = _axes("share of the images refused", "share of the others that is right", floor)
    for kind, (refused, accuracy) in curves:
        which = np.unique(np.linspace(0, len(refused) - 1, POINTS).astype(int))
        drawn += _path(list(zip(refused[which], accuracy[which], strict=True)), kind, floor)
    if 0 < (refused_now := float(answers.unknown_N.mean())) < 1:
        right = float(answers.right_N[~answers.unknown_N].mean())
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

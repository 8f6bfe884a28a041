"""Names beside points: each where it hides the least, with a thin line where it is not close."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dafuse.report.drawing import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINT = 8.0  # what a marker covers, in points of type, as all lengths here
NEAR, FURTHER = 6.0, (6.0, 13.0, 22.0, 33.0)
# right, left, above, below, then the corners
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


class Place(NamedTuple):
    left: float
    bottom: float
    distance: float
    side: int  # of the point: 1 is right, 0 above or below, -1 left


def name_points(
    figure: "Figure",
    axes: "Axes",
    points: list[tuple[float, float]],
    names: list[str],
    size: float,
) -> None:
    """Write names beside points of the axes, whose limits must be final."""
    texts = [
        figure.text(0, 0, name, size=size, parse_math=False, in_layout=False) for name in names
    ]
    figure.draw_without_rendering()  # only now it is known where the points are
    scale = 72 / figure.dpi
    boxes = [text.get_window_extent() for text in texts]
    points_N2 = axes.transData.transform(points) * scale
    sizes_N2 = np.array([(box.width, box.height) for box in boxes]) * scale
    frame_4 = np.array(axes.get_window_extent().extents) * scale
    places = place_labels(points_N2, sizes_N2, frame_4)
    line = {"arrowstyle": "-", "color": INK, "lw": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 3}
    for text, point, (x, y), (width, _), place in zip(
        texts, points, points_N2, sizes_N2, places, strict=True
    ):
        text.remove()
        axes.annotate(
            text.get_text(),
            point,
            xytext=(place.left + width * (1 - place.side) / 2 - x, place.bottom - y),
            textcoords="offset points",
            ha=("center", "left", "right")[place.side],  # the reader's letters may be narrower
            va="bottom",
            size=size,
            in_layout=False,
            annotation_clip=False,
            arrowprops=line if place.distance > NEAR else None,
        )


def place_labels(points_N2: np.ndarray, sizes_N2: np.ndarray, frame_4: np.ndarray) -> list[Place]:
    """A place for each label: near its point, off the other labels and points, in the frame.

    Each takes its best place given the others', three times over; the most crowded choose first.
    """
    markers_N4 = np.concatenate([points_N2 - POINT / 2, points_N2 + POINT / 2], axis=1)
    labels_N4 = np.full((len(points_N2), 4), np.nan)  # left, bottom, right, top; NaN: not placed
    chosen: list[Place] = [Place(x, y, 0.0, 1) for x, y in points_N2]
    apart_NN = np.abs(points_N2[:, None] - points_N2[None]).sum(axis=2)
    crowded = np.argsort(-(apart_NN < 60).sum(axis=1), kind="stable")
    for i in [*crowded, *crowded, *crowded]:
        others_M4 = np.concatenate([np.delete(labels_N4, i, axis=0), markers_N4])
        width, height = sizes_N2[i]
        best = np.inf
        for place in _around(points_N2[i], width, height):
            box_4 = np.array([place.left, place.bottom, place.left + width, place.bottom + height])
            outside = width * height - float(_overlap(box_4, frame_4[None])[0])
            hidden = float(np.nansum(_overlap(box_4, others_M4)))
            cost = 5 * hidden + 10 * outside + place.distance
            if cost < best - 1e-6:  # the first of equals
                best, chosen[i], labels_N4[i] = cost, place, box_4
    return chosen


def _around(point: np.ndarray, width: float, height: float) -> list[Place]:
    x, y = map(float, point)
    return [
        Place(
            x + right * (far + width / 2) - width / 2,
            y + up * (far + height / 2) - height / 2,
            far,
            right,
        )
        for far in FURTHER
        for right, up in DIRECTIONS
    ]


def _overlap(box_4: np.ndarray, others_M4: np.ndarray) -> np.ndarray:
    """Areas [M] that a box (left, bottom, right, top) shares with others."""
    low = np.maximum(box_4[:2], others_M4[:, :2])
    high = np.minimum(box_4[2:], others_M4[:, 2:])
    return np.clip(high - low, 0, None).prod(axis=1)

"""The looks of figures: one style, a palette for every eye, SVG for a page, names beside points.

Matplotlib is imported inside functions and used through `Figure` objects, never through pyplot.
"""

import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dafuse.errors import DafuseError
from dafuse.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = ("-", "--", ":", "-.")  # tell apart what the six colours no longer can
COLOURS = "cividis"  # for heat maps: readable without colour vision, and in grey
INK, FAINT = "#232427", "#dcdde1"  # as the palette's blue, the page sets them for light or dark
POINT = 8.0  # what a marker covers, in points of type, as all lengths of names beside points
NEAR, FURTHER = 6.0, (6.0, 13.0, 22.0, 33.0)  # from a point to its name
# right, left, above, below, then the corners
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


class NothingToDraw(DafuseError):
    """The runs do not make this figure; says what it needs."""


STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "dafuse",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
}
IN_FILE = {  # settings of an image of 8 inches that differ
    "font.size": 11,
    "figure.constrained_layout.w_pad": 0.15,
    "figure.constrained_layout.h_pad": 0.15,
}


@dataclass(frozen=True)
class Drawing:
    """A figure still to be drawn, on a page or as an image 1200 pixels wide in a file."""

    draw: "Callable[[Figure, float], None]"  # into the figure, with names in letters of this size
    alt: str = ""  # for those who cannot see it
    on_page: tuple[float, float] = (5.4, 3.3)  # inches
    height: float = 4.4  # inches of the image, which is 8 wide
    letters: tuple[float, float] = (8.5, 10)  # of names on a page, in an image

    def svg(self) -> str:
        with canvas(*self.on_page) as figure:
            self.draw(figure, self.letters[0])
            return svg(figure, self.alt)

    def write_png(self, path: str | os.PathLike[str]) -> None:
        with canvas(8, self.height, **IN_FILE) as figure:
            self.draw(figure, self.letters[1])
            image = png(figure)
        write_atomically(path, image)


@contextmanager
def canvas(width: float = 5.4, height: float = 3.3, **style: Any) -> "Iterator[Figure]":
    """An empty figure (inches) in the house style; `svg` or `png` finishes it in the block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, **style}), warnings.catch_warnings():
        # Class names may be in any script: the reader's browser has the letters, not our font.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: "Figure", label: str) -> str:
    """The figure as an SVG element for a page, with `label` for those who cannot see it."""
    take_literally(figure)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    drawn = drawn.replace("xlink:href", "href")
    # the reader's own letters, in both of Matplotlib's ways to write it
    drawn = re.sub(r"(font: [^;\"]*?px|font-family:) [^;\"]*", r"\1 sans-serif", drawn)
    for name, colour in (("ink", INK), ("faint", FAINT), ("blue", PALETTE[0])):
        drawn = drawn.replace(colour, f"var(--{name}, {colour})")
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).strip()


def png(figure: "Figure") -> bytes:
    """Return the figure as an image on white, 150 pixels to the inch."""
    take_literally(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()


def own_names(drawn: str, owner: str) -> str:
    """Return the SVG with this prefix before its inner names: figures of one page share them.

    Names that nothing refers to are dropped: they are most of what Matplotlib writes.
    """
    used = set(re.findall(r'href="#([^"]+)"', drawn)) | set(re.findall(r"url\(#([^)]+)\)", drawn))

    def rename(tag: re.Match[str]) -> str:
        text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", tag[0])
        return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{owner}-", text)

    return re.sub(r"<[^>]+>", rename, drawn)


def take_literally(figure: "Figure") -> None:
    """Take all texts literally, since names come from users: a dollar sign is no formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)


def heat_map(axes: "Axes", values: Any, low: float, high: float, label: str) -> Any:
    """Draw cells [rows, columns], NaN left empty, with a colour bar named `label`."""
    image = axes.imshow(
        values, cmap=COLOURS, vmin=low, vmax=high, aspect="auto", interpolation="none"
    )
    axes.grid(False)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, label=label, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    return image


def write_in_cells(
    axes: "Axes", values: Any, middle: float, size: float = 8, form: str = "{:.0f}"
) -> None:
    """Write each value in its cell: light on dark colours, dark on light ones."""
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value == value:  # not NaN
                colour = "#ffffff" if value < middle else "#101114"
                text = form.format(value)
                axes.text(j, i, text, ha="center", va="center", color=colour, size=size)


def count_in_whole(axis: Any) -> None:
    """Put ticks at whole numbers only: there is no task 2.5."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def number_cells(axes: "Axes", rows: list[int], columns: list[int]) -> None:
    """Write the cells' numbers beside them, or every second, fifth, tenth if not all fit."""
    for numbers, most, place in ((rows, 12, axes.set_yticks), (columns, 10, axes.set_xticks)):
        step = next(s for s in (1, 2, 5, 10, 20, 50, len(numbers)) if len(numbers) <= most * s)
        shown = [k for k, number in enumerate(numbers) if number % step == 0]
        place(shown, [str(numbers[k]) for k in shown])


def moved_apart(heights: list[float], gap: float) -> list[float]:
    """Falling heights moved apart to at least `gap`: those that collide stand around their mean."""
    blocks: list[list[float]] = []
    for height in heights:
        blocks.append([height])
        while len(blocks) > 1 and _foot(blocks[-2], gap) - gap < _head(blocks[-1], gap):
            collided = blocks.pop()
            blocks[-1] += collided
    return [_head(block, gap) - k * gap for block in blocks for k in range(len(block))]


def _head(block: list[float], gap: float) -> float:
    return sum(block) / len(block) + gap * (len(block) - 1) / 2


def _foot(block: list[float], gap: float) -> float:
    return sum(block) / len(block) - gap * (len(block) - 1) / 2


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
    """Find a place for each label: near its point, off the other labels and points, in the frame.

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

"""How figures look: one style, a palette for every eye, and SVG that is at home in a page.

Matplotlib is imported inside functions and used through `Figure` objects, never through pyplot.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = ("-", "--", ":", "-.")  # tell apart what the six colours no longer can
COLOURS = "cividis"  # for heat maps: readable without colour vision, and in grey
INK, FAINT = "#232427", "#dcdde1"  # as the palette's blue, the page sets them for light or dark


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
PICTURE = {  # what a picture of 8 inches has otherwise
    "font.size": 11,
    "figure.constrained_layout.w_pad": 0.15,
    "figure.constrained_layout.h_pad": 0.15,
}


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
    """The figure as a picture on white, 150 pixels to the inch."""
    take_literally(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()


def own_names(drawn: str, owner: str) -> str:
    """The same SVG with its inner names made the owner's, since figures of one page share them.

    Names that nothing refers to go: they are most of what Matplotlib writes.
    """
    used = set(re.findall(r'href="#([^"]+)"', drawn)) | set(re.findall(r"url\(#([^)]+)\)", drawn))

    def rename(tag: re.Match[str]) -> str:
        text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", tag[0])
        return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{owner}-", text)

    return re.sub(r"<[^>]+>", rename, drawn)


def take_literally(figure: "Figure") -> None:
    """Names come from users: a dollar sign in one is no formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)


def heat_map(axes: "Axes", values: Any, low: float, high: float, label: str) -> Any:
    """Cells [rows, columns], NaN left empty, with a colour bar named `label`."""
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
    """Each value in its cell, light on the dark half of the colours and dark on the light half."""
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value == value:  # not NaN
                colour = "#ffffff" if value < middle else "#101114"
                text = form.format(value)
                axes.text(j, i, text, ha="center", va="center", color=colour, size=size)


def count_in_whole(axis: Any) -> None:
    """Ticks at whole numbers only: there is no task 2.5."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def number_cells(axes: "Axes", rows: list[int], columns: list[int]) -> None:
    """The cells' numbers beside them, or every second, fifth, tenth where all would not fit."""
    for numbers, most, place in ((rows, 12, axes.set_yticks), (columns, 10, axes.set_xticks)):
        step = next(s for s in (1, 2, 5, 10, 20, 50, len(numbers)) if len(numbers) <= most * s)
        shown = [k for k, number in enumerate(numbers) if number % step == 0]
        place(shown, [str(numbers[k]) for k in shown])


def spread(heights: list[float], gap: float) -> list[float]:
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

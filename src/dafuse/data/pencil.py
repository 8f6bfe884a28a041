"""Drawing with polygons: a pencil that can be moved, turned and mirrored, and the light on a sheet.

Coordinates are shares of the sheet's height: x from 0 to `WIDE`, y from 0 (top) to 1.
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDE = 4 / 3  # width of a sheet, in heights
OVERSAMPLING = 2  # drawn larger and shrunk: edges are smooth
CORNERS = 36  # of the polygon that stands for an ellipse

Point = tuple[float, float]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Pencil:
    """A pencil on a sheet, at the place, in the size and at the angle that `moved` gave it."""

    sheet: Image.Image
    rng: np.random.Generator
    x: float = 0.0
    y: float = 0.0
    size: float = 1.0
    turn: float = 0.0  # degrees
    mirrored: bool = False

    def moved(self, x: float, y: float, size: float, turn: float = 0.0) -> "Pencil":
        """A pencil whose origin is there and whose unit is ``size``; mirrored half of the time."""
        mirrored = bool(self.rng.random() < 0.5)
        return replace(self, x=x, y=y, size=size, turn=turn, mirrored=mirrored)

    def somewhere(self, low: float, high: float, size: tuple[float, float]) -> "Pencil":
        """A pencil near the middle, whose origin is about these heights, a little turned."""
        x, y = WIDE / 2 + self.between(-0.2, 0.2), self.between(low - 0.04, high + 0.04)
        return self.moved(x, y, self.between(0.7 * size[0], 1.15 * size[1]), self.between(-9, 9))

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        ImageDraw.Draw(self.sheet).polygon([self._on_sheet(*one) for one in points], fill=colour)

    def rectangle(
        self, left: float, top: float, right: float, bottom: float, colour: Colour
    ) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def cover(self, colour: Colour, top: float = 0.0) -> None:
        """Colour all of the sheet from this height down."""
        self.rectangle(0, top, WIDE, 1, colour)

    def line(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """A path of round joints, whose width is in the pencil's unit."""
        pixels = max(1, round(width * self.size * self.sheet.height))
        ends = [self._on_sheet(*one) for one in points]
        ImageDraw.Draw(self.sheet).line(ends, fill=colour, width=pixels, joint="curve")

    def ellipse(
        self, x: float, y: float, across: float, down: float, colour: Colour, turn: float = 0.0
    ) -> None:
        """Draw an ellipse around this centre, with these half axes."""
        self.polygon(ellipse(x, y, across, down, turn), colour)

    def ball(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc that is lighter towards the upper left."""
        for step in range(6):
            share = step / 6
            self.ellipse(
                x - 0.3 * share * radius,
                y - 0.3 * share * radius,
                radius * (1 - share),
                radius * (1 - share),
                shade(colour, 0.75 + 0.6 * share),
            )

    def _on_sheet(self, x: float, y: float) -> Point:
        if self.mirrored:
            x = -x
        angle, unit = math.radians(self.turn), self.size * self.sheet.height
        turned = (
            x * math.cos(angle) - y * math.sin(angle),
            x * math.sin(angle) + y * math.cos(angle),
        )
        height = self.sheet.height
        return self.x * height + turned[0] * unit, self.y * height + turned[1] * unit


def ellipse(
    x: float, y: float, across: float, down: float, turn: float = 0.0, end: float = 360.0
) -> list[Point]:
    """Points of an ellipse, or of a part of it from the right clockwise to an angle."""
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    points = []
    for angle in np.radians(np.linspace(0, end, CORNERS + 1)):
        dx, dy = across * math.cos(angle), down * math.sin(angle)
        points.append((x + dx * cos - dy * sin, y + dx * sin + dy * cos))
    return points


def colour(hue: float, saturation: float, value: float) -> Colour:
    """Return the colour of a hue (any number; whole turns do not count), saturation and value."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, min(1, saturation), min(1, value))
    return round(255 * red), round(255 * green), round(255 * blue)


def any_colour(rng: np.random.Generator, saturation: float = 0.75, value: float = 0.8) -> Colour:
    """A colour of any hue."""
    return colour(rng.random(), saturation * rng.uniform(0.7, 1.2), value * rng.uniform(0.75, 1.2))


def shade(of: Colour, share: float) -> Colour:
    """The same colour, darker (below 1) or lighter (above 1)."""
    red, green, blue = (min(255, round(one * share)) for one in of)
    return red, green, blue


def gradient(top: Colour, bottom: Colour, height: int, rng: np.random.Generator) -> Image.Image:
    """A new sheet whose colour goes from one to the other, with soft spots as clouds have them."""
    width = round(height * WIDE)
    share_H1 = np.linspace(0, 1, height)[:, None, None]
    pixels_HW3 = (1 - share_H1) * np.array(top) + share_H1 * np.array(bottom)
    pixels_HW3 = pixels_HW3 + rng.uniform(0, 25) * _spots(height, width, rng)[..., None]
    return Image.fromarray(pixels_HW3.clip(0, 255).astype(np.uint8))


def ground(pencil: Pencil, horizon: float) -> None:
    """Grass, sand, snow or asphalt below the horizon, in stripes that get lighter towards it."""
    rng = pencil.rng
    kinds = [(0.28, 0.55, 0.6), (0.12, 0.35, 0.85), (0.6, 0.04, 0.95), (0.6, 0.04, 0.5)]
    hue, saturation, value = kinds[rng.integers(len(kinds))]
    base = colour(hue + rng.uniform(-0.04, 0.04), saturation, value * rng.uniform(0.85, 1.05))
    for step in range(8):
        top = horizon + (1 - horizon) * step / 8
        pencil.cover(shade(base, 1.1 - 0.03 * step), top)


def leaves_in_front(pencil: Pencil) -> None:
    """A twig from one side, near the camera."""
    rng = pencil.rng
    of = colour(rng.uniform(0, 0.45), 0.5, rng.uniform(0.25, 0.7))
    start = WIDE * float(rng.integers(2))  # of the left side or the right
    towards = 1 if start == 0 else -1
    y, lean, count = rng.uniform(0.1, 0.9), rng.uniform(-0.3, 0.3), int(rng.integers(4, 9))
    end = start + towards * 0.09 * count
    pencil.line([(start, y), (end, y + lean * 0.09 * count)], shade(of, 0.6), 0.012)
    for step in range(1, count + 1):
        x, here = start + towards * 0.09 * step, y + lean * 0.09 * step
        side = 1 if step % 2 else -1
        leaf = shade(of, rng.uniform(0.8, 1.25))
        pencil.ellipse(x, here + 0.045 * side, 0.07, 0.028, leaf, turn=50 * side * towards)


def finished(sheet: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The sheet as a camera would have seen it: shrunk, lit, a little blurred and noisy."""
    width, height = sheet.width // OVERSAMPLING, sheet.height // OVERSAMPLING
    small = sheet.resize((width, height), Image.Resampling.LANCZOS)
    small = small.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.6)))
    pixels_HW3 = np.asarray(small, dtype=np.float64)
    across_HW = np.linspace(-1, 1, width)[None] * rng.uniform(-0.2, 0.2)
    down_H1 = np.linspace(-1, 1, height)[:, None] * rng.uniform(-0.15, 0.15)
    light_HW = rng.uniform(0.55, 1.2) + across_HW + down_H1
    tint_3 = rng.uniform(0.85, 1.15, 3)
    pixels_HW3 = pixels_HW3 * light_HW[..., None] * tint_3
    pixels_HW3 += rng.uniform(3, 12) * _spots(height, width, rng)[..., None]
    pixels_HW3 += rng.normal(0, rng.uniform(2, 16), pixels_HW3.shape)
    return Image.fromarray(pixels_HW3.clip(0, 255).astype(np.uint8))


def _spots(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth random numbers of about 1, of two sizes."""
    field = np.zeros((height, width))
    for cells in (4, 12):
        coarse = rng.normal(size=(cells, cells)).astype(np.float32)
        fine = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        field += np.asarray(fine) / 1.4
    return field

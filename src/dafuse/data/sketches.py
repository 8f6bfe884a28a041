"""Sixteen things and scenes, drawn on the spot: images that need no download.

from dafuse.data.sketches import write_sketches

write_sketches("images", ["house", "tree"], count=20, seed=0)

Each image has its own colours, place, size, light, background and noise. The colour of a thing
says nothing about what it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from dafuse.data.pencil import (
    OVERSAMPLING,
    WIDE,
    Colour,
    Pencil,
    any_colour,
    colour,
    finished,
    gradient,
    ground,
    leaves_in_front,
    shade,
)
from dafuse.data.sketched_life import bird, butterfly, fir, fish, flower, fruit, oak
from dafuse.data.sketched_things import boat, bus, car, church, house
from dafuse.errors import DafuseError
from dafuse.seeds import numpy_generator

HEIGHT = 180  # pixels
IN_FRONT = 0.4  # share of the images in which something hides a part


def sketch(name: str, number: int, seed: int, height: int = HEIGHT) -> np.ndarray:
    """Return pixels uint8 [H, W, 3]; they depend on these four alone."""
    if name not in SKETCHES:
        raise DafuseError(f"no sketch is called {name!r}; there are {', '.join(SKETCHES)}")
    rng = numpy_generator(seed, "sketch", name, number)
    sheet = _sky(name, height * OVERSAMPLING, rng)
    pencil = Pencil(sheet, rng)
    SKETCHES[name](pencil)
    if rng.random() < IN_FRONT:
        leaves_in_front(pencil)
    return np.asarray(finished(sheet, rng))


def write_sketches(
    root: str | Path, names: Sequence[str], count: int, seed: int, height: int = HEIGHT
) -> Path:
    """Write ``count`` JPEG files of each, in a folder for each name; return the root."""
    for name in names:
        folder = Path(root) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image = Image.fromarray(sketch(name, number, seed, height))
            image.save(folder / f"{number:03d}.jpg", quality=88)
    return Path(root)


def _sky(name: str, height: int, rng: np.random.Generator) -> Image.Image:
    """A new sheet: a clear day, an overcast one, dusk, or night for the city."""
    day = rng.random()
    if name == "city at night":
        top, bottom = colour(0.62 + rng.uniform(-0.06, 0.1), 0.6, 0.3), any_colour(rng, 0.4, 0.55)
    elif day < 0.5:
        top, bottom = colour(0.58, 0.55, 0.9), colour(0.56, 0.2, 1.0)
    elif day < 0.75:
        top, bottom = colour(0.6, 0.08, 0.75), colour(0.6, 0.05, 0.92)
    else:
        top, bottom = colour(0.68, 0.4, 0.6), colour(0.07 + rng.uniform(-0.04, 0.04), 0.5, 1.0)
    return gradient(top, bottom, height, rng)


def _sea(pencil: Pencil) -> None:
    rng, horizon = pencil.rng, pencil.between(0.4, 0.6)
    water = colour(pencil.between(0.45, 0.65), pencil.between(0.4, 0.8), pencil.between(0.45, 0.8))
    sun_x, sun = pencil.between(0.35, 1.0), colour(pencil.between(0.02, 0.16), 0.5, 1.0)
    pencil.ellipse(sun_x, horizon - pencil.between(-0.02, 0.25), 0.09, 0.09, sun)
    pencil.cover(water, horizon)
    for _ in range(90):  # waves: longer and lower down, the nearer
        near = rng.random() ** 1.3
        x, y, long = rng.uniform(0, WIDE), horizon + (1 - horizon) * near, 0.04 + 0.16 * near
        glitter = abs(x - sun_x) < 0.12 and rng.random() < 0.7
        of = sun if glitter else shade(water, rng.uniform(0.75, 1.4))
        pencil.line([(x - long, y), (x, y - 0.02 * near), (x + long, y)], of, 0.005 + 0.012 * near)


def _mountain(pencil: Pencil) -> None:
    rng, base = pencil.rng, any_colour(pencil.rng, 0.25, 0.6)
    for layer, (low, high) in enumerate([(0.15, 0.3), (0.3, 0.45), (0.5, 0.62)]):
        rock = shade(base, 1.15 - 0.25 * layer)
        centre, foot = pencil.between(0.3, 1.05), pencil.between(0.75, 0.9) + 0.05 * layer
        for peak in (centre - pencil.between(0.4, 0.6), centre, centre + pencil.between(0.35, 0.6)):
            top, half = pencil.between(low, high), pencil.between(0.4, 0.65)
            pencil.polygon([(peak, top), (peak + half, foot), (peak - half, foot)], rock)
            ridge = (peak + 0.1 * half, foot)
            pencil.polygon([(peak, top), (peak + half, foot), ridge], shade(rock, 0.75))
            if layer < 2:  # snow
                deep, zig = 0.3 * (foot - top), 0.3 * half
                edge = [
                    (peak + zig * (1 - 0.5 * k), top + deep * (1 - 0.35 * (k % 2)))
                    for k in range(5)
                ]
                pencil.polygon([(peak, top), *edge], colour(0.6, 0.05, rng.uniform(0.88, 1)))
    ground(pencil, pencil.between(0.82, 0.92))


def _wall(pencil: Pencil) -> None:
    rng = pencil.rng
    brick, mortar = any_colour(rng, 0.5, 0.65), any_colour(rng, 0.08, pencil.between(0.5, 0.95))
    pencil.cover(mortar)
    high = pencil.between(0.08, 0.15)
    long, gap = high * pencil.between(1.8, 2.6), 0.1 * high
    leaning = replace(pencil, turn=pencil.between(-4, 4))
    for row in range(-2, int(1 / high) + 3):
        for column in range(-2, int(WIDE / long) + 2):
            x, y = (column + 0.5 * (row % 2)) * long, row * high
            of = shade(brick, rng.uniform(0.75, 1.25))
            leaning.rectangle(x + gap, y + gap, x + long - gap, y + high - gap, of)


def _city(pencil: Pencil) -> None:
    rng = pencil.rng
    for _ in range(rng.integers(0, 40)):  # stars
        pencil.ellipse(rng.uniform(0, WIDE), rng.uniform(0, 0.5), 0.004, 0.004, (230, 230, 240))
    if rng.random() < 0.5:
        pencil.ellipse(rng.uniform(0.3, 1.0), 0.15, 0.06, 0.06, (250, 245, 215))
    lit = colour(pencil.between(0.08, 0.17), 0.5, 1.0)
    for layer in range(2):
        tower = shade(any_colour(rng, 0.25, 0.35), 1.0 - 0.35 * layer)
        x = -0.05
        while x < WIDE:
            wide, top = rng.uniform(0.1, 0.22), rng.uniform(0.2, 0.6) + 0.12 * layer
            of = shade(tower, rng.uniform(0.75, 1.2))
            pencil.rectangle(x, top, x + wide, 1, of)
            for wx in np.arange(x + 0.02, x + wide - 0.02, 0.035):
                for wy in np.arange(top + 0.03, 1, 0.05):
                    shown: Colour = lit if rng.random() < 0.5 else shade(of, 0.7)
                    pencil.rectangle(wx, wy, wx + 0.018, wy + 0.026, shown)
            x += wide + rng.uniform(0, 0.04)


SKETCHES: dict[str, Callable[[Pencil], None]] = {
    "house": house,
    "oak": oak,
    "car": car,
    "flower": flower,
    "fish": fish,
    "sea": _sea,
    "church": church,
    "fir": fir,
    "bus": bus,
    "butterfly": butterfly,
    "mountain": _mountain,
    "sailing boat": boat,
    "bird": bird,
    "brick wall": _wall,
    "city at night": _city,
    "bowl of fruit": fruit,
}

"""Plants and animals that `data.sketches` draws, each with a background of its own."""

import math
from dataclasses import replace

from dafuse.data.pencil import WIDE, Pencil, any_colour, colour, ellipse, ground, shade


def oak(pencil: Pencil) -> None:
    rng = pencil.rng
    ground(pencil, pencil.between(0.65, 0.78))
    pen = pencil.somewhere(0.8, 0.93, (0.65, 0.9))
    bark = colour(pencil.between(0.03, 0.1), 0.5, pencil.between(0.25, 0.45))
    leaf = colour(pencil.between(-0.02, 0.36), pencil.between(0.4, 0.8), pencil.between(0.35, 0.75))
    pen.polygon([(-0.07, 0), (0.07, 0), (0.035, -0.55), (-0.035, -0.55)], bark)
    for side in (-1, 1):
        pen.line([(0, -0.35), (0.2 * side, -0.58)], bark, 0.03)
    for step in range(70):  # leaves: dark below, light above
        angle, far = rng.uniform(0, 2 * math.pi), math.sqrt(rng.random())
        x, y = 0.34 * far * math.cos(angle), -0.66 + 0.27 * far * math.sin(angle)
        light = 0.7 + 0.35 * step / 70 + 0.25 * (-0.66 - y)
        radius = rng.uniform(0.05, 0.1)
        pen.ellipse(x, y, radius, 0.8 * radius, shade(leaf, light))


def fir(pencil: Pencil) -> None:
    rng = pencil.rng
    ground(pencil, pencil.between(0.65, 0.78))
    pen = pencil.somewhere(0.8, 0.93, (0.65, 0.9))
    bark = colour(pencil.between(0.03, 0.1), 0.5, pencil.between(0.25, 0.45))
    needle = colour(pencil.between(0.2, 0.5), pencil.between(0.3, 0.7), pencil.between(0.3, 0.6))
    pen.rectangle(-0.05, -0.2, 0.05, 0, bark)
    tiers = int(rng.integers(4, 8))
    for tier in range(tiers):  # from below, each smaller than the one before
        foot, half = -0.15 - 0.68 * tier / tiers, 0.36 * (1 - 0.8 * tier / tiers)
        top = foot - 0.95 / tiers
        of = shade(needle, 0.8 + 0.4 * tier / tiers)
        pen.polygon([(-half, foot), (0, foot - 0.03), (half, foot), (0, top)], of)
        pen.polygon([(0, foot - 0.03), (half, foot), (0, top)], shade(of, 0.8))


def flower(pencil: Pencil) -> None:
    rng = pencil.rng
    blurred = any_colour(rng, 0.45, 0.55)
    pencil.cover(blurred)
    for _ in range(14):  # what is behind it, out of focus
        pencil.ellipse(
            rng.uniform(0, WIDE), rng.random(), 0.15, 0.15, shade(blurred, rng.uniform(0.75, 1.25))
        )
    pen = pencil.somewhere(0.38, 0.5, (0.3, 0.42))
    stem = colour(pencil.between(0.22, 0.38), 0.6, pencil.between(0.35, 0.6))
    pen.line([(0, 0), (0.06, 0.8), (0, 2)], stem, 0.09)
    for side in (-1, 1):
        pen.ellipse(0.3 * side, 1.1, 0.34, 0.1, shade(stem, 1.15), turn=-30 * side)
    petal, count, start = any_colour(rng, 0.7, 0.9), int(rng.integers(6, 13)), rng.uniform(0, 60)
    for step in range(count):
        angle = math.radians(start + 360 * step / count)
        x, y = 0.55 * math.cos(angle), 0.55 * math.sin(angle)
        turn = math.degrees(angle)
        pen.ellipse(x, y, 0.46, 1.5 / count, shade(petal, 0.8 + 0.25 * (step % 2)), turn)
        pen.ellipse(1.1 * x, 1.1 * y, 0.3, 0.8 / count, shade(petal, 1.1), turn)
    pen.ball(0, 0, 0.24, any_colour(rng, 0.8, 0.75))


def fruit(pencil: Pencil) -> None:
    rng, edge = pencil.rng, pencil.between(0.4, 0.55)
    room, table = any_colour(rng, 0.25, 0.75), colour(pencil.between(0.03, 0.13), 0.5, 0.65)
    pencil.cover(room)
    for step in range(10):  # boards
        top = edge + (1 - edge) * step / 10
        of = shade(table, rng.uniform(0.88, 1.1))
        pencil.cover(of, top)
    pen = pencil.somewhere(0.72, 0.82, (0.4, 0.52))
    bowl = any_colour(rng, 0.35, 0.85)
    pen.ellipse(0, 0.12, 0.75, 0.12, shade(table, 0.55))  # its shadow
    fruits = [any_colour(rng, 0.85, 0.85) for _ in range(2)]
    for x, y in (
        (-0.3, -0.62),
        (0.28, -0.62),
        (0, -0.68),
        (-0.48, -0.4),
        (0.48, -0.4),
        (-0.16, -0.42),
        (0.17, -0.4),
    ):
        x, y = x + rng.uniform(-0.04, 0.04), y + rng.uniform(-0.04, 0.04)
        radius = rng.uniform(0.19, 0.25)
        pen.ball(x, y, radius, fruits[rng.integers(2)])
        pen.line([(x, y - 0.8 * radius), (x + 0.04, y - 1.25 * radius)], (70, 50, 30), 0.03)
    pen.polygon(ellipse(0, -0.35, 0.82, 0.5, end=180), bowl)
    pen.polygon(ellipse(0.1, -0.33, 0.62, 0.4, end=120), shade(bowl, 0.88))
    pen.polygon([(-0.3, 0.15), (0.3, 0.15), (0.22, 0.06), (-0.22, 0.06)], shade(bowl, 0.8))


def fish(pencil: Pencil) -> None:
    rng = pencil.rng
    water = colour(pencil.between(0.42, 0.66), pencil.between(0.4, 0.8), pencil.between(0.4, 0.8))
    for step in range(12):
        top = step / 12
        pencil.cover(shade(water, 1.2 - 0.05 * step), top)
    for _ in range(rng.integers(3, 8)):  # weeds and bubbles
        x, tall = rng.uniform(0, WIDE), rng.uniform(0.1, 0.3)
        weed = colour(rng.uniform(0.2, 0.4), 0.6, 0.4)
        pencil.line([(x, 1), (x + 0.03, 1 - tall / 2), (x - 0.02, 1 - tall)], weed, 0.02)
        pencil.ellipse(rng.uniform(0, WIDE), rng.random(), 0.015, 0.015, shade(water, 1.5))
    pen = pencil.somewhere(0.42, 0.58, (0.36, 0.5))
    scales, tall = any_colour(rng, 0.75, 0.85), pencil.between(0.3, 0.48)
    fin = shade(scales, 0.75)
    pen.polygon([(0.62, 0), (1.05, -0.4), (0.95, 0), (1.05, 0.4)], fin)
    pen.polygon([(-0.25, -0.8 * tall), (0.1, -tall - 0.28), (0.4, -0.5 * tall)], fin)
    pen.polygon([(-0.1, 0.8 * tall), (0.15, tall + 0.18), (0.3, 0.6 * tall)], fin)
    pen.ellipse(0, 0, 0.75, tall, scales)
    pen.ellipse(-0.02, 0.45 * tall, 0.6, 0.45 * tall, shade(scales, 1.25))
    stripes = any_colour(rng, 0.6, 0.8)
    for step in range(rng.integers(0, 5)):
        x = -0.25 + 0.2 * step
        pen.ellipse(x, 0, 0.045, tall * math.sqrt(max(0.05, 1 - (x / 0.75) ** 2)) * 0.92, stripes)
    pen.polygon([(-0.1, 0.02), (0.22, 0.18), (0.2, -0.08)], fin)
    pen.ellipse(-0.48, -0.1, 0.085, 0.085, (245, 245, 240))
    pen.ellipse(-0.5, -0.1, 0.045, 0.045, (15, 15, 20))
    pen.line([(-0.73, 0.08), (-0.58, 0.12)], shade(scales, 0.5), 0.025)


def butterfly(pencil: Pencil) -> None:
    rng = pencil.rng
    green = colour(pencil.between(0.05, 0.45), pencil.between(0.2, 0.6), pencil.between(0.4, 0.85))
    pencil.cover(green)
    for _ in range(24):  # blades
        x, y = rng.uniform(0, WIDE), rng.uniform(0.1, 1)
        pencil.line(
            [(x, y), (x + rng.uniform(-0.15, 0.15), y - 0.35)],
            shade(green, rng.uniform(0.7, 1.3)),
            0.02,
        )
    pen = pencil.somewhere(0.45, 0.55, (0.36, 0.48))
    pen = replace(pen, turn=pencil.between(-35, 35))
    wing, spot, edge = any_colour(rng, 0.75, 0.9), any_colour(rng, 0.6, 0.9), (25, 20, 25)
    spread = pencil.between(0.8, 1.0)
    for side in (-1, 1):
        upper = [(0, -0.1), (0.25, -0.55), (0.85, -0.72), (0.95, -0.45), (0.62, 0.02), (0, 0.08)]
        lower = [(0, 0.05), (0.55, 0.05), (0.72, 0.35), (0.5, 0.68), (0.2, 0.5)]
        for outline, of in ((lower, shade(wing, 0.85)), (upper, wing)):
            points = [(side * spread * x, y) for x, y in outline]
            pen.polygon(points, edge)
            x0 = sum(x for x, _ in points) / len(points)
            y0 = sum(y for _, y in points) / len(points)
            pen.polygon([(x0 + 0.84 * (x - x0), y0 + 0.84 * (y - y0)) for x, y in points], of)
        for x, y, radius in ((0.68, -0.48, 0.1), (0.45, -0.25, 0.07), (0.45, 0.35, 0.09)):
            pen.ellipse(side * spread * x, y, radius, radius, spot)
        pen.line([(0.02 * side, -0.4), (0.2 * side, -0.72)], edge, 0.02)
    pen.ellipse(0, 0.02, 0.06, 0.45, edge)


def bird(pencil: Pencil) -> None:
    rng = pencil.rng
    bough = colour(pencil.between(0.03, 0.3), 0.45, pencil.between(0.3, 0.6))
    pen = pencil.somewhere(0.45, 0.58, (0.36, 0.5))
    pen.line([(-1.6, 0.62), (0, 0.55), (1.7, 0.66)], bough, 0.09)
    for _ in range(rng.integers(3, 12)):  # leaves
        x = rng.uniform(-1.5, 1.6)
        of = shade(colour(rng.uniform(0.1, 0.4), 0.6, 0.6), rng.uniform(0.7, 1.2))
        pen.ellipse(x, 0.6 + rng.uniform(-0.2, 0.2), 0.14, 0.06, of, rng.uniform(0, 180))
    plumage, belly = any_colour(rng, 0.6, 0.75), any_colour(rng, 0.4, 0.9)
    pen.polygon([(0.4, 0.1), (1.05, 0.42), (0.95, 0.56), (0.3, 0.34)], shade(plumage, 0.7))
    for x in (-0.05, 0.12):
        pen.line([(x, 0.3), (x, 0.58)], (90, 70, 40), 0.035)
    pen.ellipse(0.08, 0.08, 0.52, 0.34, plumage, turn=22)
    pen.ellipse(-0.06, 0.16, 0.34, 0.24, belly, turn=30)
    pen.ellipse(0.24, 0.06, 0.36, 0.19, shade(plumage, 0.8), turn=28)
    pen.ellipse(-0.36, -0.3, 0.24, 0.23, plumage)
    pen.polygon([(-0.57, -0.36), (-0.8, -0.25), (-0.57, -0.22)], colour(0.1, 0.8, 0.85))
    pen.ellipse(-0.42, -0.35, 0.045, 0.045, (15, 15, 20))

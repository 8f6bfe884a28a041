"""Buildings, vehicles and a boat that `data.sketches` draws, each with a background of its own."""

from dafuse.data.pencil import WIDE, Colour, Pencil, any_colour, colour, ground, shade


def house(pencil: Pencil) -> None:
    rng = pencil.rng
    ground(pencil, pencil.between(0.6, 0.72))
    pen = pencil.somewhere(0.7, 0.85, (0.5, 0.72))
    wall, roof = any_colour(rng, 0.35, 0.85), any_colour(rng, 0.6, 0.55)
    half, high, gable = pencil.between(0.42, 0.58), pencil.between(0.45, 0.6), 0.38
    pen.rectangle(-half, -high, half, 0, wall)
    pen.rectangle(0.15 * half, -high, half, 0, shade(wall, 0.9))
    pen.rectangle(0.45 * half, -high - 0.42, 0.65 * half, -high - 0.1, shade(roof, 0.7))
    pen.polygon([(-half - 0.08, -high), (half + 0.08, -high), (0, -high - gable)], roof)
    glass = colour(pencil.between(0.1, 0.6), 0.35, pencil.between(0.4, 0.95))
    frame = (240, 240, 235)
    for x in (-0.62 * half, 0.62 * half):
        y, side = -0.62 * high, 0.13
        pen.rectangle(x - side, y - side, x + side, y + side, frame)
        for dx, dy in ((-0.11, -0.11), (0.015, -0.11), (-0.11, 0.015), (0.015, 0.015)):
            pen.rectangle(x + dx, y + dy, x + dx + 0.095, y + dy + 0.095, glass)
    pen.rectangle(-0.09, -0.3, 0.09, 0, any_colour(rng, 0.6, 0.5))


def church(pencil: Pencil) -> None:
    rng = pencil.rng
    ground(pencil, pencil.between(0.6, 0.72))
    pen = pencil.somewhere(0.72, 0.88, (0.5, 0.66))
    wall, roof = any_colour(rng, 0.35, 0.85), any_colour(rng, 0.6, 0.55)
    long, high, tower = pencil.between(0.45, 0.65), pencil.between(0.32, 0.42), 0.2
    pen.rectangle(-tower, -high, long, 0, wall)
    pen.polygon(
        [(-tower, -high), (long + 0.05, -high), (long - 0.08, -high - 0.26), (0, -high - 0.26)],
        roof,
    )
    top = pencil.between(0.72, 0.85)
    pen.rectangle(-2 * tower, -top, 0, 0, shade(wall, 0.92))
    spire = top + pencil.between(0.3, 0.45)
    pen.polygon([(-2 * tower - 0.04, -top), (0.04, -top), (-tower, -spire)], shade(roof, 0.9))
    pen.line([(-tower, -spire), (-tower, -spire - 0.12)], (60, 55, 50), 0.02)
    pen.line([(-tower - 0.05, -spire - 0.07), (-tower + 0.05, -spire - 0.07)], (60, 55, 50), 0.02)
    glass = colour(pencil.between(0.1, 0.6), 0.35, pencil.between(0.3, 0.9))
    for x in (0.14, 0.3, 0.46):
        if x < long - 0.06:
            pen.rectangle(x - 0.035, -0.24, x + 0.035, -0.08, glass)
            pen.ellipse(x, -0.24, 0.035, 0.05, glass)
    pen.rectangle(-tower - 0.07, -0.2, -tower + 0.07, 0, shade(roof, 0.6))
    pen.ellipse(-tower, -0.2, 0.07, 0.08, shade(roof, 0.6))
    pen.ellipse(-tower, -top + 0.15, 0.07, 0.07, (240, 238, 230))  # its clock


def car(pencil: Pencil) -> None:
    rng, horizon = pencil.rng, pencil.between(0.5, 0.65)
    road = street(pencil, horizon)
    pen = pencil.somewhere(0.68, 0.82, (0.42, 0.54))
    body, cabin = any_colour(rng, 0.75, 0.75), pencil.between(0.3, 0.4)
    pen.ellipse(0, 0.16, 0.95, 0.06, shade(road, 0.5))  # its shadow
    pen.polygon(
        [(-0.55, -0.25), (-0.32, -0.25 - cabin), (0.25, -0.25 - cabin), (0.55, -0.25)],
        shade(body, 0.9),
    )
    glass = colour(0.57, 0.25, pencil.between(0.45, 0.85))
    for left, right in (((-0.46, -0.28), (-0.04, -0.04)), ((0.02, 0.02), (0.22, 0.44))):
        pen.polygon(
            [
                (left[0], -0.26),
                (left[1], -0.2 - cabin),
                (right[0], -0.2 - cabin),
                (right[1], -0.26),
            ],
            glass,
        )
    pen.polygon(
        [(-0.92, 0.08), (-0.9, -0.16), (-0.55, -0.27), (0.6, -0.27), (0.92, -0.14), (0.94, 0.08)],
        body,
    )
    pen.rectangle(-0.92, 0, 0.94, 0.08, shade(body, 0.7))
    pen.ellipse(0.86, -0.1, 0.06, 0.05, (255, 245, 190))
    pen.ellipse(-0.88, -0.08, 0.035, 0.05, (200, 40, 35))
    for x in (-0.52, 0.52):
        wheel(pen, x, 0.07, 0.19)


def bus(pencil: Pencil) -> None:
    rng, horizon = pencil.rng, pencil.between(0.5, 0.65)
    road = street(pencil, horizon)
    pen = pencil.somewhere(0.68, 0.82, (0.42, 0.54))
    body, high = any_colour(rng, 0.75, 0.8), pencil.between(0.62, 0.78)
    pen.ellipse(0, 0.16, 1.0, 0.06, shade(road, 0.5))  # its shadow
    pen.rectangle(-1.0, -high, 1.0, 0.1, body)
    pen.rectangle(-1.0, -high, 1.0, 0.06 - high, shade(body, 1.25))
    pen.rectangle(-1.0, -0.02, 1.0, 0.1, shade(body, 0.7))
    glass, count = colour(0.57, 0.25, pencil.between(0.4, 0.85)), int(rng.integers(4, 7))
    for number in range(count):
        left = -0.92 + 1.5 * number / count
        pen.rectangle(left, 0.12 - high, left + 1.25 / count, 0.4 - high, glass)
    pen.rectangle(0.66, 0.12 - high, 0.95, 0.06, shade(glass, 0.85))  # the door
    pen.ellipse(0.97, -0.05, 0.04, 0.04, (255, 245, 190))
    for x in (-0.6, 0.48):
        wheel(pen, x, 0.09, 0.16)


def street(pencil: Pencil, horizon: float) -> Colour:
    """Ground with a road on it; the road's colour."""
    ground(pencil, horizon)
    road = shade((105, 105, 110), pencil.between(0.7, 1.2))
    pencil.cover(road, horizon + 0.1)
    return road


def wheel(pen: Pencil, x: float, y: float, radius: float) -> None:
    pen.ellipse(x, y, radius, radius, (30, 30, 32))
    pen.ellipse(x, y, 0.5 * radius, 0.5 * radius, (175, 175, 180))


def boat(pencil: Pencil) -> None:
    rng, horizon = pencil.rng, pencil.between(0.55, 0.7)
    water = colour(pencil.between(0.45, 0.65), pencil.between(0.35, 0.8), pencil.between(0.4, 0.75))
    pencil.cover(water, horizon)
    for _ in range(40):
        x, y = rng.uniform(0, WIDE), rng.uniform(horizon, 1)
        pencil.line([(x, y), (x + 0.1, y)], shade(water, rng.uniform(0.8, 1.3)), 0.006)
    pen = pencil.somewhere(horizon + 0.06, horizon + 0.16, (0.42, 0.58))
    hull, sail = any_colour(rng, 0.6, 0.6), any_colour(rng, 0.25, 0.98)
    pen.line([(0, -0.1), (0, -1.05)], (80, 60, 45), 0.03)
    pen.polygon([(0.03, -1.02), (0.03, -0.22), (0.58, -0.22)], sail)
    pen.polygon([(-0.03, -0.92), (-0.03, -0.22), (-0.4, -0.22)], shade(sail, 0.85))
    pen.polygon([(-0.62, -0.14), (0.66, -0.14), (0.46, 0.14), (-0.42, 0.14)], hull)
    pen.polygon([(-0.62, -0.14), (0.66, -0.14), (0.62, -0.08), (-0.57, -0.08)], shade(hull, 1.4))
    pen.ellipse(0.02, 0.16, 0.5, 0.03, shade(water, 1.5))

"""Printed characters, drawn on the spot: a data set for machines that have no data."""

import string
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dafuse.data.dataset import Augmentation, Dataset, ImageSet
from dafuse.errors import DafuseError
from dafuse.seeds import numpy_generator

CHARACTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits

# Text fonts that matplotlib ships; its other fonts lack some of the characters.
TRAIN_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmb10", "cmr10", "cmtt10"),
)
TEST_ONLY_FONTS = (
    "DejaVuSansMono-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneralBol",
    "cmss10",
    "cmti10",
)

# A small x is at most 3/4 as high as a capital, and the least capital is 3/4 as high as the
# greatest: x and X, s and S stay apart although every image has another size.
CAPITAL_HEIGHTS = (0.41, 0.54)  # as a share of the image's side; the widest M just fits
ROTATION_DEGREES = 20.0
JITTER = 0.15  # how far from the centre, as a share of the image's side
LEAST_CONTRAST = 80.0  # of 255, in brightness
BRIGHTNESS = np.array([0.299, 0.587, 0.114])
OVERSAMPLING = 2


def glyphs(
    train_per_class: int = 50, test_per_class: int = 20, seed: int = 0, size: int = 64
) -> Dataset:
    """The 62 characters A-Z, a-z and 0-9 in many fonts, drawn on the spot.

    Every second test image of a class (half of them, the odd ones) is in one of five fonts that no
    training image has. An image depends on its split, class, number, size and the seed only, so
    more images per class leave the first ones as they were (other releases of FreeType, which
    Pillow brings, may differ in a pixel's last bits).

    Args:
        train_per_class: training images of each character.
        test_per_class: test images of each character.
        seed: which images are drawn.
        size: side of the images in pixels.
    """
    if train_per_class < 1 or test_per_class < 0 or size < 16:
        raise DafuseError(
            "glyphs needs 1 or more training images of each class, 0 or more test images, and a "
            f"size of 16 pixels or more, not {train_per_class}, {test_per_class} and {size}"
        )
    return Dataset(
        name="glyphs",
        classes=[_class_name(character) for character in CHARACTERS],
        train=_image_set("train", train_per_class, seed, size),
        test=_image_set("test", test_per_class, seed, size),
        augmentation=Augmentation(scale=(0.5, 1.0), flip=0.0),  # mirrored letters are other letters
    )


def _class_name(character: str) -> str:
    """A name that no file system confuses with that of the other case."""
    if character.isdigit():
        return f"digit {character}"
    return f"upper {character}" if character.isupper() else f"lower {character}"


def _image_set(split: str, per_class: int, seed: int, size: int) -> ImageSet:
    images = np.empty((len(CHARACTERS) * per_class, size, size, 3), dtype=np.uint8)
    for row in range(len(images)):
        label, number = divmod(row, per_class)
        rng = numpy_generator(seed, "glyphs", split, label, number)
        unseen = split == "test" and number % 2 == 1
        fonts = TEST_ONLY_FONTS if unseen else TRAIN_FONTS
        font = fonts[rng.integers(len(fonts))]
        images[row] = _draw(CHARACTERS[label], font, size, rng)
    return ImageSet(images, np.repeat(np.arange(len(CHARACTERS)), per_class))


def _draw(character: str, font: str, size: int, rng: np.random.Generator) -> np.ndarray:
    ink_HW1 = _ink(character, font, size, rng)[..., None]
    colour, near, far = _colours(rng)
    paper_HW3 = _paper(size, near, far, rng)
    image = paper_HW3 + (colour - paper_HW3) * ink_HW1
    return np.rint(np.clip(image, 0, 255)).astype(np.uint8)


def _ink(character: str, font: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Place the character, from 0 to 1: turned and shifted, but wholly inside."""
    side = size * OVERSAMPLING
    face = _face(font, round(rng.uniform(*CAPITAL_HEIGHTS) * side / _capital_height(font)))
    left, top, right, bottom = (int(edge) for edge in face.getbbox(character))
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), character, fill=255, font=face)
    angle = rng.uniform(-ROTATION_DEGREES, ROTATION_DEGREES)
    glyph = glyph.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    glyph = glyph.crop(glyph.getbbox())
    room = np.maximum(side - np.array(glyph.size), 0) / 2
    shift = np.clip(rng.uniform(-JITTER, JITTER, size=2) * side, -room, room)
    x, y = np.rint((side - np.array(glyph.size)) / 2 + shift).astype(int)
    canvas = Image.new("L", (side, side))
    canvas.paste(glyph, (int(x), int(y)))
    return np.asarray(canvas.reduce(OVERSAMPLING), dtype=np.float64) / 255


def _colours(rng: np.random.Generator) -> np.ndarray:
    """Ink and two papers, RGB; both papers brighter than the ink, or both darker, by enough."""
    while True:
        colours = rng.integers(0, 256, size=(3, 3)).astype(np.float64)
        ink, *papers = colours @ BRIGHTNESS
        if min(papers) - ink >= LEAST_CONTRAST or ink - max(papers) >= LEAST_CONTRAST:
            return colours


def _paper(size: int, near: np.ndarray, far: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A background [size, size, 3]: plain, gradient, noise or blurred blobs."""
    kind = rng.choice(["plain", "gradient", "noise", "blobs"])
    if kind == "noise":
        return near + rng.normal(0, rng.uniform(5, 25), size=(size, size, 3))
    mix_HW = np.zeros((size, size))  # 0: the near colour, 1: the far one
    if kind == "gradient":
        angle = rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[0:size, 0:size] / (size - 1) - 0.5
        mix_HW = np.clip(x * np.cos(angle) + y * np.sin(angle) + 0.5, 0, 1)
    elif kind == "blobs":
        cells = int(rng.integers(3, 7))
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells), dtype=np.uint8))
        blurred = coarse.resize((size, size), Image.Resampling.BICUBIC)
        mix_HW = np.asarray(blurred, dtype=np.float64) / 255
    return near + (far - near) * mix_HW[..., None]


@lru_cache(maxsize=1024)
def _face(font: str, pixels: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    try:
        return ImageFont.truetype(str(file), pixels, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise DafuseError(
            f"glyphs draws with matplotlib's fonts, but cannot read {file} ({error}): "
            "install matplotlib again with pip"
        ) from error


@lru_cache
def _capital_height(font: str) -> float:
    """Height of a capital at one pixel of font size."""
    _, top, _, bottom = _face(font, 256).getbbox("H")
    return (bottom - top) / 256

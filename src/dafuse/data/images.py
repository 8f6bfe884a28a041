"""One image to pixels: a path, the bytes of a file, a Pillow image, an array.

A large image can be reduced, for what holds many or tells them apart.
"""

import io
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dafuse.data.formats import (
    BYTES_OF_A_PIXEL,
    MOST_BYTES,
    MOST_PIXELS,
    load_plugins,
    most_pixels,
    why_unknown,
)
from dafuse.data.stored import StoredImage
from dafuse.files import instead_of_file
from dafuse.wording import first_line

# an array is uint8 [H, W, 3] or [H, W]
AnyImage = str | Path | bytes | StoredImage | Image.Image | np.ndarray
# A reduced image has at most so many: networks look at 64 to 518 pixels a side, and a thousand
# photographs as they come from a camera would take 36 GB. With another number here, models would
# no longer recognise the large images that they were taught (`product.seen`).
REDUCED_PIXELS = 2**19
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how such files begin; they may have many pages
TILE_SIDES = (322, 323)  # tags of TIFF
SLAB = 2**18  # pixels that are converted together: a large image is not held twice


class UnreadableImage(Exception):
    """A file that gives no pixels; the message is a short reason."""


def pixels_of(image: AnyImage) -> np.ndarray:
    """Return uint8 pixels [H, W, 3]; raise `UnreadableImage` with a short reason."""
    if isinstance(image, Image.Image):
        return to_rgb(image.copy())
    if isinstance(image, StoredImage):
        return read_image(_content(image))
    if not isinstance(image, np.ndarray):
        return read_image(image)
    if image.dtype != np.uint8:
        raise UnreadableImage(f"pixels must be uint8 (0 to 255), not {image.dtype}")
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise UnreadableImage(f"pixels must have the shape [H, W, 3], not {list(image.shape)}")
    return image


def read_image(source: str | Path | bytes) -> np.ndarray:
    """Return the pixels of an image file, uint8 [H, W, 3] in RGB, as a viewer would show them.

    The source is the path of the file or its bytes. Transparent images lie on white, EXIF rotation
    is applied, animations give their first frame, and more than 8 bits are scaled to 8. Raises
    `UnreadableImage`.
    """
    try:
        file: Path | io.BytesIO
        if isinstance(source, bytes):
            file, length = io.BytesIO(source), len(source)
        else:
            file, length = Path(source), Path(source).stat().st_size
            if what := instead_of_file(file):
                raise UnreadableImage(f"it is {what}")
        if length == 0:
            raise UnreadableImage("the file is empty")
        if length > MOST_BYTES and _start(source)[:4] not in TIFF:  # some kinds are read as a whole
            raise UnreadableImage(f"more than {MOST_BYTES:,} bytes; save it smaller")
        with opened(file) as image:
            _require_size(image)
            image.load()
            return to_rgb(image)
    except UnreadableImage:
        raise
    except FileNotFoundError:
        raise UnreadableImage("there is no such file") from None
    except PermissionError:
        raise UnreadableImage("reading it is not permitted") from None
    except UnidentifiedImageError:
        raise UnreadableImage(why_unknown(_start(source), _name(source))) from None
    except Image.DecompressionBombError:
        raise _too_large(MOST_PIXELS) from None
    except MemoryError:
        raise UnreadableImage("there is not enough memory to decode it") from None
    except Exception as error:  # broken bytes make Pillow's decoders raise almost anything
        reason = first_line(error)
        raise UnreadableImage(reason) from error


def _content(image: StoredImage) -> bytes:
    """Return the bytes of an image that is stored elsewhere.

    A server that does not answer is no reason to skip an image: that error goes on.
    """
    try:
        return image.content()
    except FileNotFoundError:
        raise UnreadableImage("there is no such file") from None
    except PermissionError:
        raise UnreadableImage("reading it is not permitted") from None
    except (OSError, ValueError) as error:
        raise UnreadableImage(" ".join(str(error).split())) from None


def opened(file: Path | io.BytesIO) -> Image.Image:
    """Open an image, not decoded yet, by Pillow alone or with the plug-ins that are installed."""
    for prepare in (Image.preinit, Image.init, load_plugins):
        prepare()
        with suppress(UnidentifiedImageError):
            return Image.open(
                file, formats=[kind for kind in BYTES_OF_A_PIXEL if kind in Image.OPEN]
            )
    raise UnidentifiedImageError


def _require_size(image: Image.Image) -> None:
    """Refuse by its header an image that takes too much memory to decode."""
    limit = most_pixels(image.format)
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow itself only refuses twice as many
        limit = min(limit, Image.MAX_IMAGE_PIXELS)
    tags = getattr(image, "tag_v2", {})  # of a TIFF; its tiles are decoded as a whole, too
    tile = [side for side in map(tags.get, TILE_SIDES) if isinstance(side, int)]
    if max(image.width * image.height, math.prod(tile)) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> UnreadableImage:
    return UnreadableImage(f"more than {limit:,} pixels (a decompression bomb?); save it smaller")


def _start(source: str | Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source[:12]
    with open(source, "rb") as file:
        return file.read(12)


def _name(source: str | Path | bytes) -> str:
    return "" if isinstance(source, bytes) else Path(source).name


def to_rgb(image: Image.Image) -> np.ndarray:
    """Return the pixels of a Pillow image as `read_image` does. It may be turned in place."""
    with suppress(Exception):  # broken EXIF is no reason to refuse good pixels
        ImageOps.exif_transpose(image, in_place=True)
    convert: Callable[[Image.Image], np.ndarray] = _opaque
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        convert = _to_8_bits(image)
    elif image.has_transparency_data:
        convert = _on_white
    pixels_HW3 = np.empty((image.height, image.width, 3), np.uint8)
    for top, slab in _slabs(image):
        pixels_HW3[top : top + slab.height] = convert(slab)
    return pixels_HW3


def _slabs(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield pieces of the image as wide as it is, and where each begins."""
    rows = max(1, SLAB // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _opaque(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def _on_white(image: Image.Image) -> np.ndarray:
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))


def reduced(pixels_HW3: np.ndarray) -> np.ndarray:
    """Return the image in at most `REDUCED_PIXELS` pixels; one that has no more, as it is.

    Reducing it again changes nothing.
    """
    height, width = pixels_HW3.shape[:2]
    if height * width <= REDUCED_PIXELS:
        return pixels_HW3
    scale = (REDUCED_PIXELS / (height * width)) ** 0.5
    height, width = max(1, round(height * scale)), max(1, round(width * scale))
    if height * width > REDUCED_PIXELS:  # both were rounded up; the longer side gives way
        shorter = min(height, width)
        height, width = (min(side, REDUCED_PIXELS // shorter) for side in (height, width))
    image = Image.fromarray(pixels_HW3)
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0))


def _to_8_bits(image: Image.Image) -> Callable[[Image.Image], np.ndarray]:
    """Return a function that scales pieces of a grey image of unknown range to 0..255.

    Integers are 16-bit; floats are taken as 0..1, 0..255 or 0..65535, the first that holds them
    all. What fits none of these is stretched from its own min to its own max.
    """

    def grays_of(slab: Image.Image) -> np.ndarray:
        return np.asarray(slab).astype(np.float64)

    def scaled(slab: Image.Image) -> np.ndarray:
        values_HW = np.nan_to_num(grays_of(slab), nan=start, posinf=high, neginf=low)
        return np.rint((values_HW - start) * (255.0 / span)).astype(np.uint8)[..., None]

    ends: list[float] = []  # min and max of each piece
    for _, slab in _slabs(image):
        grays = grays_of(slab)
        finite = grays[np.isfinite(grays)]
        ends += [finite.min(), finite.max()] if finite.size else []
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    tops = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    top = next((top for top in tops if low >= 0 and high <= top), None)
    start, span = (0.0, top) if top is not None else (low, max(high - low, 1e-12))
    return scaled

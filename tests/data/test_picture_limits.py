"""Pictures that are too large or of another kind than their name says: refused unopened."""

import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dafuse.data import formats
from dafuse.data.images import UnreadableImage, read_image, to_rgb


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    ("name", "limit"), [("a.png", 1000), ("a.jpg", 1000), ("a.tif", 1000), ("a.webp", 600)]
)
def test_what_takes_too_much_memory_is_refused_with_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(formats, "MOST_BYTES", 12_000)
    with pytest.raises(UnreadableImage, match=f"more than {limit:,} pixels"):
        read_image(save(Image.new("RGB", (limit // 20 + 1, 20)), tmp_path / name))
    assert read_image(save(Image.new("RGB", (limit // 20, 20)), tmp_path / name)).any() == 0


def tiled_tiff(side: int) -> bytes:
    """A gray picture of one pixel in one tile of this height and width, of zeros."""
    tile = zlib.compress(bytes(side * side))
    tags = [(256, 1), (257, 1), (258, 8), (259, 8), (262, 1), (277, 1), (322, side), (323, side)]
    tags += [(324, 8 + 2 + 12 * 10 + 4), (325, len(tile))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + tile


def test_a_tile_is_not_larger_than_a_picture_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_image(tiled_tiff(32)).tolist() == [[[0, 0, 0]]]
    monkeypatch.setattr(formats, "MOST_BYTES", 12_000)
    with pytest.raises(UnreadableImage, match="more than 1,000 pixels"):
        read_image(tiled_tiff(32))


@pytest.mark.parametrize("suffix", ["webp", "avif", "png"])
def test_a_file_larger_than_any_picture_is_not_read(tmp_path: Path, suffix: str) -> None:
    """Pillow reads some kinds as a whole, before it says how large the picture is."""
    path = save(Image.new("RGB", (8, 8)), tmp_path / "a.png").rename(tmp_path / f"a.{suffix}")
    if f".{suffix}" in formats.readable_suffixes():
        save(Image.new("RGB", (8, 8)), path)
    with path.open("r+b") as file:
        file.truncate(2**36)  # takes no place on the disk
    with pytest.raises(UnreadableImage, match="more than 1,073,741,824 bytes"):
        read_image(path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "I;16"])
def test_large_pictures_are_converted_in_pieces(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The same pixels come of it, in not much more memory than they take."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (500, 400, 3), np.uint8))
    if mode in ("I", "F", "I;16"):
        image = image.convert("I").point(lambda gray: 99 * gray)
    image = image.convert(mode)
    pixels = to_rgb(image.copy())
    monkeypatch.setattr("dafuse.data.images.SLAB", 400 * 7)
    tracemalloc.start()
    in_pieces = to_rgb(image)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(in_pieces, pixels)
    assert peak < 1.5 * pixels.nbytes


@pytest.mark.parametrize("name", ["a.png", "a.eps"])
def test_no_program_is_called_for_a_picture(tmp_path: Path, name: str) -> None:
    path = save(Image.new("RGB", (8, 8)), tmp_path / "a.eps").rename(tmp_path / name)
    reason = "PostScript is not read" if name == "a.png" else ".eps files are not read"
    with pytest.raises(UnreadableImage, match=reason):
        read_image(path)


@pytest.mark.parametrize(("kind", "word"), [("ICO", "ICO"), ("PDF", "PDF"), ("TGA", "not an")])
def test_other_kinds_are_not_opened_under_any_name(tmp_path: Path, kind: str, word: str) -> None:
    path = save(Image.new("RGB", (32, 32)), tmp_path / "a.png", format=kind)
    with pytest.raises(UnreadableImage, match=word):
        read_image(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_what_is_no_file_is_not_called_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zeros.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zeros.jpg"):
        with pytest.raises(UnreadableImage, match=r"^it is no file \(a pipe or a device\)$"):
            read_image(tmp_path / name)
    with pytest.raises(UnreadableImage, match=r"^it is a folder$"):
        read_image(tmp_path)

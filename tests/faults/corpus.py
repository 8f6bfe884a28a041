"""Files that people might give as pictures: honest ones in every spelling, and hostile ones.

Each maker takes a generator of random choices, so that a seed makes the same bytes again.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from PIL import Image

Turn = Image.Transpose
# what a viewer does for each EXIF orientation, undone: so a picture is stored to look upright
STORED = {
    1: None, 2: Turn.FLIP_LEFT_RIGHT, 3: Turn.ROTATE_180, 4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE, 6: Turn.ROTATE_90, 7: Turn.TRANSVERSE, 8: Turn.ROTATE_270,
}  # fmt: skip
EXACT = {  # kind -> suffix, options: what is saved so has the same pixels again
    "PNG": [("png", {}), ("png", {"compress_level": 0}), ("png", {"interlace": True})],
    "BMP": [("bmp", {})],
    "PPM": [("ppm", {})],
    "TIFF": [("tif", {}), ("tiff", {"compression": "tiff_lzw"})],
    "WEBP": [("webp", {"lossless": True, "exact": True})],
}
TURNED = ("PNG", "TIFF", "WEBP")  # that are exact and can be turned by EXIF
FRAMED = ("PNG", "TIFF", "WEBP")  # that are exact and may have more frames
INEXACT = [  # mode, kind, suffix, options
    ("L", "PNG", "png", {}), ("LA", "PNG", "png", {}), ("1", "PNG", "png", {}),
    ("P", "PNG", "png", {}), ("P", "GIF", "gif", {}), ("PA", "TIFF", "tif", {}),
    ("I", "TIFF", "tif", {}), ("F", "TIFF", "tif", {}), ("I;16", "PNG", "png", {}),
    ("I;16", "TIFF", "tif", {}), ("CMYK", "TIFF", "tif", {}), ("LAB", "TIFF", "tif", {}),
    ("YCbCr", "TIFF", "tif", {}), ("RGBX", "TIFF", "tif", {}), ("CMYK", "JPEG", "jpg", {}),
    ("L", "JPEG", "jpeg", {}), ("RGB", "JPEG", "jpe", {"progressive": True, "subsampling": 0}),
    ("RGB", "MPO", "jpg", {"save_all": True}), ("RGB", "AVIF", "avif", {}),
    ("RGBA", "WEBP", "webp", {"quality": 80}), ("1", "PPM", "pbm", {}), ("L", "PPM", "pgm", {}),
]  # fmt: skip
NAMES = [  # of files and of folders, without what the file system forbids
    "-rf", "--help", "a\nb", "a\rb", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "tab\there",
    "\u202egnp", "\u200b", "..x", "...", "x" * 240, "\u732b" * 40, "\U0001f408\u200d\u2b1b",
    "caf\u00e9", "cafe\u0301", "%s%n", "'; drop", '"', "*", "[a]", "$(id)", "\\", " lead", "trail ",
    "bad\udcff", "\udce9", "[red]x", "CON", "unknown", "nan", "1e9", "\x9b31m", "\u2028",
]  # fmt: skip


class Honest(NamedTuple):
    """A picture that must be answered."""

    data: bytes
    suffix: str
    exact: bool  # it has the pixels of the one that it was made of


def honest(random: Random, picture: Image.Image) -> Honest:
    """The same picture in another spelling."""
    maker: Callable[[Random, Image.Image], Honest] = random.choice(
        [_plain, _opaque, _turned, _framed, _wrong_suffix, _polyglot, _inexact, _inexact]
    )
    return maker(random, picture)


def _plain(random: Random, picture: Image.Image) -> Honest:
    kind = random.choice(sorted(EXACT))
    suffix, options = random.choice(EXACT[kind])
    return Honest(saved(picture, kind, **options), suffix, True)


def _opaque(random: Random, picture: Image.Image) -> Honest:
    return Honest(saved(picture.convert("RGBA"), "PNG"), "png", True)


def _turned(random: Random, picture: Image.Image) -> Honest:
    orientation, kind = random.choice(sorted(STORED)), random.choice(TURNED)
    suffix, options = EXACT[kind][0]
    turn = STORED[orientation]
    stored = picture if turn is None else picture.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return Honest(saved(stored, kind, exif=exif, **options), suffix, True)


def _framed(random: Random, picture: Image.Image) -> Honest:
    kind = random.choice(FRAMED)
    suffix, options = EXACT[kind][0]
    more = [picture.transpose(Turn.ROTATE_180), Image.new("RGB", picture.size, "red")]
    return Honest(saved(picture, kind, save_all=True, append_images=more, **options), suffix, True)


def _wrong_suffix(random: Random, picture: Image.Image) -> Honest:
    suffix = random.choice(["jpg", "gif", "webp", "tif", "BMP", "PnG"])
    return Honest(saved(picture, "PNG"), suffix, True)


def _polyglot(random: Random, picture: Image.Image) -> Honest:
    """A picture that is something else, too, when it is read from its end."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("a.py", "print('run')")
    tail = random.choice([archive.getvalue(), b"<script>alert(1)</script>", b"\nstartxref\n%%EOF"])
    return Honest(saved(picture, "PNG") + tail, "png", True)


def _inexact(random: Random, picture: Image.Image) -> Honest:
    mode, kind, suffix, options = random.choice(_writable())
    if mode in ("I", "F", "I;16"):
        changed = picture.convert("I").point(lambda gray: 200 * gray).convert(mode)
    elif mode == "LAB":
        changed = Image.merge("LAB", picture.split())
    else:
        changed = picture.convert("P").convert(mode) if mode == "PA" else picture.convert(mode)
    extra = {"append_images": [changed]} if kind == "MPO" else {}
    return Honest(saved(changed, kind, **options, **extra), suffix, False)


def _writable() -> list[tuple[str, str, str, dict[str, Any]]]:
    Image.init()
    return [one for one in INEXACT if one[1] in Image.SAVE]


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


# hostile files: each must be named, and never answered


def hostile(random: Random) -> tuple[bytes, str]:
    """A file that is no picture, or too large a one, and a suffix of pictures."""
    make = random.choice(sorted(HOSTILE))
    return HOSTILE[make](random), random.choice(["png", "jpg", "gif", "webp", "tif", "bmp"])


def _cut(random: Random) -> bytes:
    noise = Image.frombytes("RGB", (40, 40), random.randbytes(4800))
    whole = saved(noise, random.choice(["PNG", "JPEG", "WEBP"]))
    return whole[: random.randint(1, len(whole) * 8 // 10)]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, data: bytes, *chunks: bytes) -> bytes:
    """A PNG of one bit for each pixel."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    body = b"".join(chunks) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + body


def _png_bomb(random: Random) -> bytes:
    """Some kilobytes that are four hundred million pixels, or say so."""
    side = random.choice([20_000, 30_000, 2**31 - 1])
    whole = side == 20_000
    return _png(side, side, zlib.compress(bytes(side * (side // 8 + 1)) if whole else b"\0", 1))


def _gif_bomb(random: Random) -> bytes:
    sides = struct.pack("<HH", 65535, 65535)
    return b"GIF89a" + sides + b"\x80\0\0" + bytes(6) + b"," + bytes(4) + sides + b"\0\2\2\x4c\1\0;"


def _bmp_bomb(random: Random) -> bytes:
    side = random.choice([30_000, 2**31 - 1])
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def _tiff_bomb(random: Random) -> bytes:
    """Return a bomb, as a whole or in one tile that is far larger than the image."""
    tiled = random.random() < 0.5
    side, tile = (1, 40_000) if tiled else (40_000, 0)
    data = zlib.compress(bytes(10**6), 9)
    tags = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1)]
    tags += [(322, tile), (323, tile)] if tiled else [(273, 0), (278, side), (279, len(data))]
    tags += [(324, 0), (325, len(data))] if tiled else []
    begin = 8 + 2 + 12 * len(tags) + 4
    entries = [(tag, begin if tag in (273, 324) else value) for tag, value in sorted(tags)]
    packed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + packed + bytes(4) + data


def _webp_bomb(random: Random) -> bytes:
    canvas = struct.pack("<I", 0x02)[:4] + (2**16 - 2).to_bytes(3, "little") * 2
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + canvas
    body += b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _jpeg_bomb(random: Random) -> bytes:
    whole = bytearray(saved(Image.new("L", (16, 16)), "JPEG"))
    at = whole.index(b"\xff\xc0") + 5
    whole[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(whole)


def _ppm_bomb(random: Random) -> bytes:
    side = random.choice([10**5, 10**9, 10**30])
    return random.choice([b"P6", b"P5", b"P4", b"P3"]) + f" {side} {side} 255\n".encode()


def _text_bomb(random: Random) -> bytes:
    text = zlib.compress(bytes(10**8), 9)
    chunk = random.choice([(b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0")])
    return _png(2**20, 2**20, b"", _chunk(chunk[0], chunk[1] + text))


def _other_kind(random: Random) -> bytes:
    """Return what Pillow could open, but would call a program for, or what is read nowhere."""
    return random.choice(
        [
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n",
            b"\xc5\xd0\xd3\xc6" + bytes(26) + b"%!PS-Adobe-3.0 EPSF-3.0\n",
            b"%PDF-1.7\n1 0 obj<</OpenAction<</S/Launch>>>>endobj\n%%EOF",
            b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
            b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "b">]><svg>&b;</svg>',
            b"push graphic-context\nfill 'url(https://localhost/\"|id\")'\npop graphic-context",
            b"\xd7\xcd\xc6\x9a" + bytes(80),
            b"8BPS\0\1" + bytes(40),
            b"\0\0\1\0\1\0" + bytes(40),
            b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40),
            b"SIMPLE  =                    T" + bytes(2850),
            b"#!/bin/sh\nid\n",
            b"MZ" + bytes(100),
        ]
    )


HOSTILE: dict[str, Callable[[Random], bytes]] = {
    "cut": _cut,
    "nothing": lambda random: b"",
    "zeros": lambda random: bytes(random.randint(1, 5000)),
    "noise": lambda random: b"\xfe" + random.randbytes(random.randint(1, 5000)),
    "png": _png_bomb,
    "gif": _gif_bomb,
    "bmp": _bmp_bomb,
    "tiff": _tiff_bomb,
    "webp": _webp_bomb,
    "jpeg": _jpeg_bomb,
    "ppm": _ppm_bomb,
    "text": _text_bomb,
    "other": _other_kind,
}


def large(random: Random) -> Honest:
    """Return an image of as many pixels as are just allowed."""
    side = 9_400
    if random.random() < 0.5:
        data = zlib.compress(bytes(side * (side // 8 + 1)), 1)
        return Honest(_png(side, side, data), "png", False)
    return Honest(saved(Image.new("L", (side, side)), "JPEG", progressive=True), "jpg", False)


# what is no file at all


def put_no_file(random: Random, folder: Path, name: str) -> str | None:
    """Something in a folder that is named or read once; return a name that must be said, if any."""
    path = folder / name
    kind = random.choice(["pipe", "gone", "loop", "up", "here", "zero", "hidden", "twin", "folder"])
    if kind == "pipe":
        os.mkfifo(path.with_suffix(".png"))
    elif kind == "zero":
        path.with_suffix(".png").symlink_to("/dev/zero")
    elif kind in ("gone", "loop"):
        path.with_suffix(".png").symlink_to("nowhere" if kind == "gone" else f"{name}.png")
    elif kind in ("up", "here", "twin"):
        targets = {"up": "..", "here": ".", "twin": "../.."}
        path.symlink_to(targets[kind])
    elif kind == "hidden":
        (folder / f".{name}").mkdir(exist_ok=True)
        (folder / f".{name}" / "a.png").write_bytes(b"x")
        return f".{name}"
    else:
        path.with_suffix(".png").mkdir(exist_ok=True)
        return None
    return path.stem if kind in ("up", "here", "twin") else path.with_suffix(".png").name

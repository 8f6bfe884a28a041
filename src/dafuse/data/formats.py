"""The kinds of image files that can be read here, how large they may be, and what others need.

Pillow reads most kinds itself. Plug-ins for others are imported when a file needs one.
"""

import os
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from PIL import features

PILLOW_READS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm"}
)
PILLOW_MAY_READ = {".webp": "webp", ".avif": "avif"}  # by how it was built
NO_PLUGIN = frozenset(
    {".raw", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw"}
    | {".svg", ".psd", ".ai", ".eps", ".xcf", ".exr", ".hdr", ".jp2", ".ico", ".tga"}
)

MOST_BYTES = 2**30  # of memory that an image may take while it is decoded
# What is decoded in memory, by the names that Pillow and plug-ins have for it, and how many bytes a
# pixel takes at most meanwhile. Other kinds are not opened: for some Pillow calls programs.
BYTES_OF_A_PIXEL = {
    **dict.fromkeys(("JPEG", "MPO", "PNG", "BMP", "GIF", "TIFF", "PPM"), 12),
    **dict.fromkeys(("WEBP", "AVIF", "HEIF", "JXL"), 20),
}
MOST_PIXELS = MOST_BYTES // min(BYTES_OF_A_PIXEL.values())
NOT_OPENED = {  # how files of other kinds begin that come under any name
    b"%!PS": "PostScript",
    b"%PDF": "PDF",
    b"8BPS": "PSD",
    b"<svg": "SVG",
    b"\0\0\1\0": "ICO",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
}


class Plugin(NamedTuple):
    """A package that teaches Pillow another kind of image."""

    module: str
    package: str
    register: str | None  # a function to call; None: importing it is enough
    kind: str
    suffixes: tuple[str, ...]
    brands: tuple[bytes, ...]  # at byte 4 of such files


PLUGINS = (
    Plugin(
        "pillow_heif",
        "pillow-heif",
        "register_heif_opener",
        "HEIC",
        (".heic", ".heif", ".hif"),
        (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1"),
    ),
    Plugin("pillow_avif", "pillow-avif-plugin", None, "AVIF", (".avif",), (b"ftypavif",)),
    Plugin("pillow_jxl", "pillow-jxl-plugin", None, "JPEG XL", (".jxl",), (b"JXL \r\n\x87\n",)),
)


@cache
def readable_suffixes() -> frozenset[str]:
    """Return the suffixes of image files that can be read here."""
    built = {
        suffix
        for suffix, name in PILLOW_MAY_READ.items()
        if name in features.modules and features.check(name)  # older ones know no AVIF, and warn
    }
    added = {suffix for plugin in PLUGINS if _installed(plugin) for suffix in plugin.suffixes}
    return PILLOW_READS | built | added


def most_pixels(kind: str | None) -> int:
    """Return how many pixels an image of this kind may have, at most `MOST_PIXELS`."""
    return MOST_BYTES // BYTES_OF_A_PIXEL.get(kind or "", max(BYTES_OF_A_PIXEL.values()))


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_image(name: str) -> bool:
    """Tell whether a file of this name is an image that can be read here, and not hidden."""
    return not name.startswith(".") and suffix_of(name) in readable_suffixes()


def why_not_read(name: str) -> str:
    """Say why a file of this name is skipped, and what to do if it is an image."""
    suffix = suffix_of(name)
    for plugin in PLUGINS:
        if suffix in plugin.suffixes:
            return _install(plugin)
    if suffix in NO_PLUGIN | PILLOW_MAY_READ.keys():
        return f"{suffix} files are not read; save them as JPEG or PNG"
    return "not an image"


def looks_like_an_image(name: str) -> bool:
    """Tell whether people would call it an image, readable here or not."""
    return is_image(name) or why_not_read(name) != "not an image"


def why_unknown(start: bytes, name: str = "") -> str:
    """Say why Pillow does not know a file with this beginning, or with this name."""
    for plugin in PLUGINS:
        if start[4:12] in plugin.brands and not _installed(plugin):
            return _install(plugin)
    if looks_like_an_image(name) and not is_image(name):
        return why_not_read(name)
    for beginning, kind in NOT_OPENED.items():
        if start.startswith(beginning):
            return f"{kind} is not read; save it as JPEG or PNG"
    return "not an image that Pillow knows"


@cache
def load_plugins() -> int:
    """Let Pillow use every plug-in that is installed. Returns how many there are."""
    installed = [plugin for plugin in PLUGINS if _installed(plugin)]
    for plugin in installed:
        with suppress(ImportError):  # one that does not fit this machine: its files stay unknown
            module = import_module(plugin.module)
            if plugin.register is not None:
                getattr(module, plugin.register)()
    return len(installed)


def _installed(plugin: Plugin) -> bool:
    return find_spec(plugin.module) is not None


def _install(plugin: Plugin) -> str:
    return f"{plugin.kind} needs a plug-in: pip install {plugin.package}"

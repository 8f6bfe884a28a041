"""Tar files of images and labels, as the tests need them."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from helpers.product_models import pictures


def png(pixels_HW3: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, "png")
    return file.getvalue()


def write_tar(file: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return file


def samples(counts: dict[int, int], seed: int = 0) -> list[tuple[str, bytes]]:
    """Return images with a .cls beside each, as members of a tar."""
    found = []
    for number, (pixels, name) in enumerate(zip(*pictures(counts, seed), strict=True)):
        found += [(f"{seed}{number:04d}.png", png(pixels))]
        found += [(f"{seed}{number:04d}.cls", name.encode())]
    return found

"""Images to distil with, on the device: squares of equal size, each with its true extent.

A source is a folder tree of image files (labels are not used), an .npz of encoded images (`blob`,
their bytes one after another, and `lengths`), or a .npy of uint8 [N, S, S, 3].
"""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


class Images(NamedTuple):
    """Images at the top left of squares, whose rest repeats their last row and column."""

    squares_NSS3: Tensor  # uint8
    sizes_N2: Tensor  # float: height and width of the image itself

    @property
    def side(self) -> int:
        return self.squares_NSS3.shape[1]

    def __len__(self) -> int:
        return len(self.squares_NSS3)

    def take(self, chosen: Tensor) -> "Images":
        return Images(self.squares_NSS3[chosen], self.sizes_N2[chosen])


def load_images(sources: list[Path], side: int, device: torch.device) -> Images:
    """Decode all sources, in order; a side longer than the square is cut to its middle."""
    with ThreadPoolExecutor() as pool:
        encoded = [one for source in sources for one in _encoded(source)]
        if not encoded:
            raise SystemExit(f"there are no images in {', '.join(map(str, sources))}")
        found = list(pool.map(lambda one: _square(one, side), encoded))
    squares_NSS3 = torch.from_numpy(np.stack([square for square, _ in found]))
    sizes_N2 = torch.tensor([size for _, size in found], dtype=torch.float32)
    return Images(squares_NSS3.to(device), sizes_N2.to(device))


def _encoded(source: Path) -> Iterator[bytes | np.ndarray]:
    if source.suffix == ".npy":
        yield from np.load(source)
    elif source.suffix == ".npz":
        pack = np.load(source)
        blob, ends = pack["blob"].tobytes(), np.cumsum(pack["lengths"].astype(np.int64))
        for start, end in zip(ends - pack["lengths"], ends, strict=True):
            yield blob[start:end]
    else:
        files = sorted(f for f in source.rglob("*") if f.suffix.lower() in SUFFIXES)
        yield from (file.read_bytes() for file in files)


def _square(encoded: bytes | np.ndarray, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    if isinstance(encoded, bytes):
        encoded = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    height, width = (min(size, side) for size in encoded.shape[:2])
    top, left = (encoded.shape[0] - height) // 2, (encoded.shape[1] - width) // 2
    image = encoded[top : top + height, left : left + width]
    margins = (0, side - height), (0, side - width), (0, 0)
    return np.pad(image, margins, mode="edge"), (height, width)

"""Sums over so many made-up images in a process of its own, which takes as much memory as it needs.

python -m dafuse.benchmarks.streamed_sums IMAGES WIDTH
"""

import sys

import numpy as np

from dafuse.heads.sums import CHUNK, pooled

CLASSES = 10


def main(images: int, width: int) -> None:
    rng, like = np.random.default_rng(0), np.zeros(0, np.float32)
    sums = pooled(width, like)
    for start in range(0, images, CHUNK):
        count = min(CHUNK, images - start)
        labels_N = rng.integers(0, CLASSES, count)
        sums.add(rng.standard_normal((count, width), dtype=np.float32), labels_N)
    assert sums.images == images
    sums.scatter.square()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

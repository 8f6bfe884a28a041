"""Seeds: every random choice draws from a generator of its own, named after its purpose.

Generators are derived, never shared. A task's randomness depends on the seed and the task alone, so
a resumed run draws exactly what an uninterrupted run would have drawn.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, e.g. ``derive(1993, "augmentation", task, epoch)``."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *purpose: str | int) -> "torch.Generator":
    import torch

    return torch.Generator().manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *purpose))

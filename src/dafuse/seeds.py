"""One seed, many purposes: every random choice draws from a generator named after what it is for.

Generators are derived, never shared, so a task's randomness depends only on the seed and the task,
and a resumed run draws exactly what an uninterrupted one would have drawn.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(1993, "augmentation", task, epoch)``."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *purpose: str | int) -> "torch.Generator":
    import torch

    return torch.Generator().manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *purpose))

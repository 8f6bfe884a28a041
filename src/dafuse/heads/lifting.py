"""The map from a network's features to hidden features: weighted by depth, and lifted.

    h = [f w, g(f w R / |w|)],    g(x) = x / (1 + exp(-1.702 x)), R normal, drawn once from a seed

g is nearly GELU.

A regression with a small penalty does not depend on the scale of its features. With few images it
must shrink, and then columns on a large scale decide. So the weights w halve with every fourth of
the network's depth, which lets the last blocks decide. numpy draws R, so that it is the same for
every device and library.

`Fourier` is another such map; its products approximate a Gaussian kernel.
"""

from collections.abc import Sequence

import numpy as np

from dafuse.heads.arrays import Array, exact, from_numpy, library

HALVINGS = 4  # halvings of the weights, from the last block to before the first


class Lift:
    """A map that is the same for every image; nothing in it is learned."""

    def __init__(
        self,
        weights_F: np.ndarray,
        width: int,
        seed: int,
        like: Array,
        tokens_F: np.ndarray | None = None,
    ) -> None:
        """Make a map with so many random columns beside the features; with none it is linear.

        ``tokens_F`` is true for features that are CLS tokens, so that others can tell them apart.
        """
        self.width = len(weights_F) + width
        tokens_M = np.zeros(self.width)
        tokens_M[: len(weights_F)] = 0 if tokens_F is None else tokens_F
        self.tokens_M = exact(from_numpy(tokens_M, like))
        self.weights_F = from_numpy(weights_F.astype(np.float32), like)
        self._random_FM: Array | None = None
        if width:
            drawn = np.random.Generator(np.random.PCG64(seed)).standard_normal(
                (len(weights_F), width), dtype=np.float32
            )
            scale = np.float32(np.linalg.norm(weights_F))
            self._random_FM = from_numpy(drawn / scale, like)

    def __call__(self, feats_NF: Array) -> Array:
        """Return hidden features [N, M] in float32."""
        weighted_NF = feats_NF * self.weights_F
        if self._random_FM is None:
            return weighted_NF
        xp = library(feats_NF)
        sums_NM = weighted_NF @ self._random_FM
        # the logistic function, without overflow for large numbers of either sign
        lifted_NM = sums_NM * 0.5 * (1 + xp.tanh(0.851 * sums_NM))
        return xp.concatenate([weighted_NF, lifted_NM], 1)


class Fourier:
    """Random Fourier features, whose products approximate the kernel exp(-gamma |x - y|^2).

    h = sqrt(2 / M) cos(f @ R + b),    R ~ N(0, 2 gamma), b ~ U(0, 2 pi), M columns
    """

    def __init__(self, inputs: int, width: int, gamma: float, seed: int, like: Array) -> None:
        self.width = width
        generator = np.random.Generator(np.random.PCG64(seed))
        drawn_FM = generator.standard_normal((inputs, width), dtype=np.float32)
        self._random_FM = from_numpy(drawn_FM * np.float32((2 * gamma) ** 0.5), like)
        phases_M = generator.random(width, dtype=np.float32) * np.float32(2 * np.pi)
        self._phases_M = from_numpy(phases_M, like)

    def __call__(self, feats_NF: Array) -> Array:
        """Return hidden features [N, M] in float32."""
        turned_NM = feats_NF @ self._random_FM + self._phases_M
        return library(feats_NF).cos(turned_NM) * (2 / self.width) ** 0.5


def depth_weights(levels: Sequence[int], widths: Sequence[int], depth: int) -> np.ndarray:
    """Return the weights w of features read at these levels, so many columns for each."""
    halvings = HALVINGS * (1 - (np.asarray(levels) + 1) / depth)
    return np.repeat(2.0**-halvings, widths)

"""How familiar an image is, and below which familiarity it is answered "unknown".

The familiarity is the log-sum-exp of the cosine logits (the negative "energy" of Liu et al., arXiv
2010.03759). On CIFAR-100 with the embedded backbone, with 20 or 40 classes known and others not, it
told known from unknown as well as any score tried, within half a point of AUROC: the largest logit
and the largest cosine to a prototype came near it, Mahalanobis distances and the largest
probability stayed behind.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dafuse.heads.cosine import SCALE, cosine_logits
from dafuse.heads.gaussians import Sampler

# Features drawn from a class's statistics are more familiar than its unseen images: what all but
# 1.5 % of them reach was reached by 95 to 97 % of the images of a model taught 5 to 60 classes of
# 45 images (docs/product.md). Deviations are drawn times 1 + 1 / images, for classes of few.
UNFAMILIAR = 0.015
DRAWN = 200  # of each class
LEAST = -SCALE  # no image is less familiar


def familiarity(logits_NC: Tensor) -> Tensor:
    """[N]; large for images like those of some class."""
    return torch.logsumexp(logits_NC, dim=-1)


def find_threshold(
    sampler: Sampler, images: Sequence[int], rows_CD: Tensor, generator: torch.Generator
) -> float:
    """The familiarity that about 95 % of the images of known classes reach.

    Of a single image nobody knows what others like it are like: then nothing is unknown.
    """
    if sum(images) == 1:
        return LEAST
    counts_C = torch.tensor(images, device=rows_CD.device, dtype=torch.float32)
    drawn_CnD = sampler.widened(1 + 1 / counts_C).draw(DRAWN, generator)
    scores = [familiarity(cosine_logits(drawn_nD, rows_CD)) for drawn_nD in drawn_CnD]
    ordered = torch.cat(scores).sort().values
    return float(ordered[int(UNFAMILIAR * len(ordered))])

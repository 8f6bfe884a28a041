"""The calibration of DAF: one temperature for all logits, and a threshold of the familiarity.

Temperature: only held-out images show how sure the classifier may be, because features drawn from
the class statistics are easier to tell apart than images. They are few in a lesson and gone after
it. So their evidence about the sharpness, which is 1 / temperature, is kept as a mean and a
precision, the prior of the next lesson: Bayes' rule with a Gaussian.

Familiarity: the log-sum-exp of the cosine logits (the negative "energy" of Liu et al., arXiv
2010.03759). On CIFAR-100 with the embedded backbone, with 20 or 40 classes known and others not, it
separated known from unknown as well as any score tried, within half a point of AUROC. The largest
logit and the largest cosine to a prototype came close; Mahalanobis distances and the largest
probability were worse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dafuse.heads.cosine import SCALE, cosine_logits
from dafuse.heads.gaussians import Sampler

# The cosine head is nearly calibrated without this: on CIFAR-100 with the embedded backbone, frozen
# or taught, the best sharpness was between 0.78 and 1.16.
PRIOR_SHARPNESS = 1.0
PRIOR_PRECISION = 1 / 0.15**2
STEPS = 50  # max steps of Newton's method

# Features drawn from a class's statistics are more familiar than its unseen images: a threshold
# that 98.5 % of them reach was reached by 95 to 97 % of the images, with 5 to 60 classes of 45
# images (docs/product.md). Stds are multiplied by 1 + 1 / images, for classes of few images.
UNFAMILIAR = 0.015
DRAWN = 200  # features for each class
LEAST = -SCALE  # the lowest possible familiarity


@dataclass(frozen=True)
class Calibration:
    """The sharpness (1 / temperature, the factor of the logits) and how well it is known."""

    images: int = 0  # held-out images in all lessons so far
    sharpness: float = 1.0
    precision: float = 0.0  # of the sharpness: the evidence of the held-out images


def with_held_out(known: Calibration, logits_NC: Tensor, labels_N: Tensor) -> Calibration:
    """Update the calibration with held-out images, if there are any.

    Minimises the negative log-likelihood plus the prior's, by Newton's method: it is convex in the
    sharpness s. With probabilities p = softmax(s z) its derivative is the sum of E_p[z] - z_label,
    its second derivative the sum of Var_p[z].
    """
    if not len(labels_N):
        return known
    logits_NC, labels_N1 = logits_NC.cpu().double(), labels_N.cpu()[:, None]
    first = known.images == 0
    prior = PRIOR_SHARPNESS if first else known.sharpness
    precision = PRIOR_PRECISION if first else known.precision
    sharpness, curvature = prior, precision
    for _ in range(STEPS):
        p_NC = torch.softmax(sharpness * logits_NC, dim=1)
        mean_N1 = (p_NC * logits_NC).sum(1, keepdim=True)
        slope = float((mean_N1 - logits_NC.gather(1, labels_N1)).sum())
        slope += precision * (sharpness - prior)
        curvature = float((p_NC * (logits_NC - mean_N1).square()).sum()) + precision
        # at most a third per step: far from the minimum the curvature may be almost zero
        step = max(-sharpness / 3, min(sharpness / 3, -slope / curvature))
        sharpness += step
        if abs(step) < 1e-6:
            break
    images = known.images + len(labels_N)
    return Calibration(images, sharpness, curvature)


def familiarity(logits_NC: Tensor) -> Tensor:
    """Return familiarity [N]: large for images like those of some class."""
    return torch.logsumexp(logits_NC, dim=-1)


def find_threshold(
    sampler: Sampler, images: Sequence[int], weights_CD: Tensor, generator: torch.Generator
) -> float:
    """Return the familiarity that about 95 % of the images of known classes reach.

    A single image does not show how its class varies, so then nothing is unknown.
    """
    if sum(images) == 1:
        return LEAST
    counts_C = torch.tensor(images, device=weights_CD.device, dtype=torch.float32)
    drawn_CnD = sampler.widened(1 + 1 / counts_C).draw(DRAWN, generator)
    scores = [familiarity(cosine_logits(drawn_nD, weights_CD)) for drawn_nD in drawn_CnD]
    ordered = torch.cat(scores).sort().values
    return float(ordered[int(UNFAMILIAR * len(ordered))])

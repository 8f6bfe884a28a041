"""The choice between several predictions of one image."""

import torch
from torch import Tensor


def most_certain(logits_BKC: Tensor) -> Tensor:
    """Return the probabilities [B, C] of each image's prediction with the least entropy."""
    log_p_BKC = torch.log_softmax(logits_BKC, dim=2)
    entropy_BK = -(log_p_BKC.exp() * log_p_BKC).sum(2)
    images_B = torch.arange(len(log_p_BKC), device=log_p_BKC.device)
    return log_p_BKC[images_B, entropy_BK.argmin(1)].exp()

"""Functions of logits: the choice among predictions, distillation, weights against imbalance."""

import torch
from torch import Tensor


def most_certain(logits_BKC: Tensor) -> Tensor:
    """Return the probabilities [B, C] of each image's prediction with the least entropy."""
    log_p_BKC = torch.log_softmax(logits_BKC, dim=2)
    entropy_BK = -(log_p_BKC.exp() * log_p_BKC).sum(2)
    images_B = torch.arange(len(log_p_BKC), device=log_p_BKC.device)
    return log_p_BKC[images_B, entropy_BK.argmin(1)].exp()


def distill(
    student_BC: Tensor, teacher_BC: Tensor, temperature: float, weights_C: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of the student's softened distribution under the teacher's.

    Class weights multiply the teacher's probabilities, which then sum to 1 again. There is no
    factor T², so the gradient shrinks as the temperature grows, as in iCaRL and FOSTER.
    """
    target_BC = torch.softmax(teacher_BC / temperature, dim=1)
    if weights_C is not None:
        target_BC = target_BC * weights_C
        target_BC = target_BC / target_BC.sum(1, keepdim=True)
    return -(target_BC * torch.log_softmax(student_BC / temperature, dim=1)).sum(1).mean()


def balanced_weights(counts_C: Tensor, beta: float) -> Tensor:
    """Return weights of mean 1, larger for rarer classes: 1 / effective number of images.

    The effective number of n images is (1 - βⁿ) / (1 - β): n as β nears 1, and 1 if β is 0.
    """
    counts_C = counts_C.double()
    weights_C = (1 - beta) / (1 - beta**counts_C)
    return (weights_C / weights_C.mean()).float()

"""The cosine classifier: weights for each class, logits = scale * cos(feature, class weights)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SCALE = 20.0  # the usual scale of cosine heads: 1 / temperature


def cosine_logits(feats_ND: Tensor, weights_CD: Tensor, scale: float | Tensor = SCALE) -> Tensor:
    """Return the logits. Features may have any number of axes before the last."""
    return scale * F.linear(F.normalize(feats_ND, dim=-1), F.normalize(weights_CD, dim=1))


def normal_init(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial class weights: truncated normal, std 0.02."""
    weights = torch.empty(classes, width)
    return torch.nn.init.trunc_normal_(weights, std=0.02, generator=generator)


def uniform_init(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial class weights for a head with a learned scale: uniform in ±1 / sqrt(width)."""
    return (torch.rand(classes, width, generator=generator) * 2 - 1) / math.sqrt(width)


def cosface(
    feats_ND: Tensor,
    weights_CD: Tensor,
    labels_N: Tensor,
    margin: float = 0.0,
    scale: float = SCALE,
) -> Tensor:
    """Return the mean cross-entropy of a cosine head where the true class must win by a margin."""
    true_NC = F.one_hot(labels_N, len(weights_CD)).to(feats_ND.dtype)
    logits = cosine_logits(feats_ND, weights_CD, scale) - scale * margin * true_NC
    return F.cross_entropy(logits, labels_N)


def prototypes(feats_ND: Tensor, labels_N: Tensor, first: int, classes: int) -> Tensor:
    """Return the mean feature of each class first .. first + classes - 1 (paper, App. B)."""
    one_hot_CN = F.one_hot(labels_N - first, classes).T.to(feats_ND.dtype)
    return one_hot_CN @ feats_ND / one_hot_CN.sum(1, keepdim=True)


def class_sums(feats_ND: Tensor, labels_N: Tensor, classes: int) -> Tensor:
    """Return the sum of the features of each class 0 .. classes - 1, in float64.

    A sum serves as class weights as well as a mean does, since only its direction counts. It needs
    no number of images, and later images are simply added.
    """
    exact = exact_dtype(feats_ND.device)
    return F.one_hot(labels_N, classes).T.to(exact) @ feats_ND.to(exact)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the precision for sums over images: float64 if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64

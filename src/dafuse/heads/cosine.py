"""The cosine classifier: a row for each class, logits = scale * cos(feature, row)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SCALE = 20.0  # the temperature of the field's cosine heads


def cosine_logits(feats_ND: Tensor, rows_CD: Tensor, scale: float | Tensor = SCALE) -> Tensor:
    """Features may have any number of dimensions before their last."""
    return scale * F.linear(F.normalize(feats_ND, dim=-1), F.normalize(rows_CD, dim=1))


def new_rows(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows to train from: truncated normal, deviation 0.02."""
    rows = torch.empty(classes, width)
    return torch.nn.init.trunc_normal_(rows, std=0.02, generator=generator)


def uniform_rows(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows to train from beside a scale that is learned: uniform within 1 / sqrt(width)."""
    return (torch.rand(classes, width, generator=generator) * 2 - 1) / math.sqrt(width)


def cosface(
    feats_ND: Tensor, rows_CD: Tensor, labels_N: Tensor, margin: float = 0.0, scale: float = SCALE
) -> Tensor:
    """Mean cross-entropy of the cosine head where the true class must win by a margin."""
    true_NC = F.one_hot(labels_N, len(rows_CD)).to(feats_ND.dtype)
    logits = cosine_logits(feats_ND, rows_CD, scale) - scale * margin * true_NC
    return F.cross_entropy(logits, labels_N)


def prototypes(feats_ND: Tensor, labels_N: Tensor, first: int, classes: int) -> Tensor:
    """Mean feature of each of the classes first .. first + classes - 1 (paper, App. B)."""
    one_hot_CN = F.one_hot(labels_N - first, classes).T.to(feats_ND.dtype)
    return one_hot_CN @ feats_ND / one_hot_CN.sum(1, keepdim=True)


def class_sums(feats_ND: Tensor, labels_N: Tensor, classes: int) -> Tensor:
    """Sum of the features of each of the classes 0 .. classes - 1, in float64.

    As a row of the classifier a sum is as good as a mean, since only its direction counts; it needs
    no number of images, and whatever comes later is added to it.
    """
    exact = exact_dtype(feats_ND.device)
    return F.one_hot(labels_N, classes).T.to(exact) @ feats_ND.to(exact)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The precision for sums over images: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64

"""The linear classifier: a row for each class, the last number of a row is its bias."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def linear_logits(feats_ND: Tensor, rows_CE: Tensor) -> Tensor:
    """``E`` is D + 1: weights and bias of each class."""
    return F.linear(feats_ND, rows_CE[:, :-1], rows_CE[:, -1])


def kaiming_rows(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows to train from: uniform weights of variance 1 / width, no bias."""
    weights = (torch.rand(classes, width, generator=generator) * 2 - 1) * math.sqrt(3 / width)
    return with_bias(weights)


def normal_rows(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows to train from: truncated normal weights, deviation 0.02, no bias."""
    weights = torch.empty(classes, width)
    return with_bias(torch.nn.init.trunc_normal_(weights, std=0.02, generator=generator))


def with_bias(weights_CD: Tensor) -> Tensor:
    """The rows with a bias of zero behind them."""
    return F.pad(weights_CD, (0, 1))


def grown_rows(start_CE: Tensor, old_KF: Tensor) -> Tensor:
    """A larger head with a smaller one in it: new classes below, new features to the right.

    The first K classes keep their weights on the first F - 1 features, and their biases.
    """
    rows_CE = start_CE.clone()
    known, features = len(old_KF), old_KF.shape[1] - 1
    rows_CE[:known, :features] = old_KF[:, :-1]
    rows_CE[:known, -1] = old_KF[:, -1]
    return rows_CE


def linear_gradient(rows_CE: Tensor, feats_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy of this head with respect to its rows."""
    error_NC = softmax_error(linear_logits(feats_ND, rows_CE), labels_N)
    return error_NC.T @ F.pad(feats_ND, (0, 1), value=1.0) / len(labels_N)


def softmax_error(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Probabilities less the one-hot labels: the gradient of each cross-entropy at its logits."""
    error_NC = torch.softmax(logits_NC, dim=1)
    return error_NC.scatter_add_(1, labels_N[:, None], error_NC.new_full((len(labels_N), 1), -1.0))

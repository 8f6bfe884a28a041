"""The linear classifier: weights for each class; the last number of each is its bias."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def linear_logits(feats_ND: Tensor, weights_CE: Tensor) -> Tensor:
    """Return the logits; ``E`` is D + 1: weights and bias of each class."""
    return F.linear(feats_ND, weights_CE[:, :-1], weights_CE[:, -1])


def linear_kaiming_init(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial class weights: uniform of variance 1 / width, no bias."""
    weights = (torch.rand(classes, width, generator=generator) * 2 - 1) * math.sqrt(3 / width)
    return with_bias(weights)


def linear_normal_init(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial class weights: truncated normal, std 0.02, no bias."""
    weights = torch.empty(classes, width)
    return with_bias(torch.nn.init.trunc_normal_(weights, std=0.02, generator=generator))


def with_bias(weights_CD: Tensor) -> Tensor:
    """Append a bias of zero to the weights of each class."""
    return F.pad(weights_CD, (0, 1))


def grown_weights(start_CE: Tensor, old_KF: Tensor) -> Tensor:
    """Put a smaller head into a larger one: new classes below, new features to the right.

    The first K classes keep their weights on the first F - 1 features, and their biases.
    """
    weights_CE = start_CE.clone()
    known, features = len(old_KF), old_KF.shape[1] - 1
    weights_CE[:known, :features] = old_KF[:, :-1]
    weights_CE[:known, -1] = old_KF[:, -1]
    return weights_CE


def linear_gradient(weights_CE: Tensor, feats_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return the gradient of this head's mean cross-entropy at its class weights."""
    error_NC = softmax_error(linear_logits(feats_ND, weights_CE), labels_N)
    return error_NC.T @ F.pad(feats_ND, (0, 1), value=1.0) / len(labels_N)


def softmax_error(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Return probabilities minus one-hot labels: the cross-entropies' gradients at the logits."""
    error_NC = torch.softmax(logits_NC, dim=1)
    return error_NC.scatter_add_(1, labels_N[:, None], error_NC.new_full((len(labels_N), 1), -1.0))

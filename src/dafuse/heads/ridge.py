"""Ridge regression from features to one-hot targets, by statistics that add up over tasks.

    G = HᵀH,   Q = YᵀH,   W = Q (G + λI)⁻¹

``H`` [N, M] are lifted features. They are wider than the given ones, so they are made a chunk at a
time. Products, eigenvectors and solutions are in float64, since the eigenvalues of G span over ten
orders of magnitude. G itself may rest between tasks in float32: at penalties that predict well, the
solution is the same. But if G lacks full rank, this rounding can make it indefinite, so a penalty
must not be less than `rounding_floor`.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dafuse.errors import DafuseError
from dafuse.heads.arrays import exact

CHUNK = 2048  # rows of H at a time
PENALTIES = tuple(10.0**power for power in range(-8, 9))
ALONE = 1e-9  # 1 - g of an image whose own direction no other image shares

Lift = Callable[[Tensor], Tensor]  # features [N, D] -> rows of H [N, M]


def same(feats_ND: Tensor) -> Tensor:
    """Return the features as they are: the lift of methods without one."""
    return feats_ND


def statistics(feats_ND: Tensor, targets_NC: Tensor, lift: Lift = same) -> tuple[Tensor, Tensor]:
    """Return G [M, M] and Q [C, M] of these features, in float64."""
    width = lift(feats_ND[:1]).shape[1]
    gram_MM = exact(feats_ND).new_zeros(width, width)
    moments_CM = gram_MM.new_zeros(targets_NC.shape[1], width)
    for hidden_nM, targets_nC in _chunks(feats_ND, targets_NC, lift):
        gram_MM.addmm_(hidden_nM.T, hidden_nM)
        moments_CM.addmm_(targets_nC.T, hidden_nM)
    return gram_MM, moments_CM


def choose_penalty(
    train_ND: Tensor,
    train_targets_NC: Tensor,
    held_out_KD: Tensor,
    held_out_targets_KC: Tensor,
    penalties: Sequence[float] = PENALTIES,
    lift: Lift = same,
) -> float:
    """Return the penalty whose fit to one part of the features errs least on the other part.

    The error is squared. One eigendecomposition serves every penalty: with the eigenvalues s, the
    prediction for h is (h B / (s + λ)) T, where B and T do not depend on λ.
    """
    values_E, basis_ME, targets_EC = _spectrum(train_ND, train_targets_NC, lift)
    errors = [0.0] * len(penalties)
    for hidden_kM, targets_kC in _chunks(held_out_KD, held_out_targets_KC, lift):
        along_kE = hidden_kM @ basis_ME
        for i, penalty in enumerate(penalties):
            predicted_kC = along_kE / (values_E + penalty) @ targets_EC
            errors[i] += float((predicted_kC - targets_kC).square().sum())
    return min(zip(errors, penalties, strict=True))[1]


def solve(gram_MM: Tensor, moments_CM: Tensor, penalty: float) -> Tensor:
    """Return the class weights W [C, M], in the precision and on the device of the moments."""
    lower_MM = _factor(gram_MM, penalty)
    weights_CM = torch.cholesky_solve(exact(moments_CM).T, lower_MM).T
    return weights_CM.to(moments_CM).contiguous()


def left_out(
    gram_MM: Tensor, moments_CM: Tensor, penalty: float, hidden_NM: Tensor, labels_N: Tensor
) -> Tensor:
    """Return leave-one-out scores [N, C] of images of the sums, in float64.

    Without the image h of class y, by the Sherman-Morrison identity and with A = G + λI,

        (Q - e_y hᵀ) (A - h hᵀ)⁻¹ h = (s - g e_y) / (1 - g),    s = Q A⁻¹ h,  g = hᵀ A⁻¹ h
    """
    hidden_NM = exact(hidden_NM)
    inner_MN = torch.cholesky_solve(hidden_NM.T, _factor(gram_MM, penalty))
    scores_NC = inner_MN.T @ exact(moments_CM).T
    own_N = (hidden_NM.T * inner_MN).sum(0)
    images_N = torch.arange(len(hidden_NM), device=scores_NC.device)
    scores_NC[images_N, labels_N.to(scores_NC.device)] -= own_N
    return scores_NC / (1 - own_N).clamp(min=ALONE)[:, None]


def _factor(gram_MM: Tensor, penalty: float) -> Tensor:
    """Return the lower Cholesky factor of G + λI."""
    penalised_MM = exact(gram_MM).clone()
    penalised_MM.diagonal().add_(penalty)
    lower_MM, failed = torch.linalg.cholesky_ex(penalised_MM)
    if failed:
        raise DafuseError(
            f"the ridge penalty {penalty:g} is too small for these features: their Gram matrix "
            "has no Cholesky factor"
        )
    return lower_MM


def rounding_floor(gram_MM: Tensor, kept: torch.dtype = torch.float32) -> float:
    """Return a penalty safely above what rounding the stored G does to its eigenvalues.

    The error of entries of size g is about ε g and random in sign, so its largest eigenvalue is
    about 2 ε g √M, while the trace is about g M. The rest of the factor covers the roundings of
    some hundred tasks, which add up like random steps.
    """
    scale = float(exact(gram_MM.diagonal()).sum()) / math.sqrt(len(gram_MM))
    return 16 * torch.finfo(kept).eps * scale


def _spectrum(feats_ND: Tensor, targets_NC: Tensor, lift: Lift) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvalues s of the smaller of HᵀH and HHᵀ, and B and T of `choose_penalty`."""
    if len(feats_ND) < lift(feats_ND[:1]).shape[1]:
        parts = list(_chunks(feats_ND, targets_NC, lift))  # smaller than a Gram matrix
        hidden_NM = torch.cat([hidden for hidden, _ in parts])
        values_E, vectors_NE = torch.linalg.eigh(hidden_NM @ hidden_NM.T)
        targets = torch.cat([targets for _, targets in parts])
        return values_E.clamp(min=0), hidden_NM.T @ vectors_NE, vectors_NE.T @ targets
    gram_MM, moments_CM = statistics(feats_ND, targets_NC, lift)
    values_E, vectors_ME = torch.linalg.eigh(gram_MM)
    return values_E.clamp(min=0), vectors_ME, vectors_ME.T @ moments_CM.T


def _chunks(feats_ND: Tensor, targets_NC: Tensor, lift: Lift) -> Iterator[tuple[Tensor, Tensor]]:
    for feats, targets in zip(feats_ND.split(CHUNK), targets_NC.split(CHUNK), strict=True):
        yield exact(lift(feats)), exact(targets)

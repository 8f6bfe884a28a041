"""Prototypes, and logits that are cosines with them."""

import torch

from dafuse.heads.cosine import cosine_logits, prototypes
from helpers.class_features import features


def test_prototypes_are_class_means() -> None:
    feats, labels = features([3, 1, 5], first=4)
    rows = prototypes(feats, labels, first=4, classes=3)
    for c in range(3):
        assert torch.allclose(rows[c], feats[labels == 4 + c].mean(0), atol=1e-5)


def test_cosine_logits_ignore_lengths() -> None:
    feats, _ = features([4])
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    other_lengths = cosine_logits(5 * feats, 0.1 * rows)
    assert torch.allclose(cosine_logits(feats, rows), other_lengths, atol=1e-5)
    by_hand = 20 * torch.cosine_similarity(feats[:, None], rows[None], dim=2)
    assert torch.allclose(cosine_logits(feats, rows), by_hand, atol=1e-5)

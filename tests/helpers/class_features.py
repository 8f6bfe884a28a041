"""Features of classes that each have a mean and a covariance of their own."""

import torch


def features(counts: list[int], width: int = 6, seed: int = 0, first: int = 0) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(len(counts), width, width, generator=generator)
    shift = 3 * torch.randn(len(counts), width, generator=generator)
    parts = [
        torch.randn(n, width, generator=generator) @ mix[c] + shift[c] for c, n in enumerate(counts)
    ]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return torch.cat(parts), labels + first

"""Batches of views for distillation: sharp photographs and small images in one batch."""

from collections.abc import Callable

import torch
from images import Images
from torch import Tensor
from views import (
    Mixing,
    Views,
    draw_mixing,
    draw_views,
    losses_of_resolution,
    mix,
    normalise,
    render,
)

SHARP_SIDE, SMALL_SIDE = 240, 64  # pixels of the squares that hold the images
SHARP_SHARE = 0.6  # of a batch
SHARP_RESOLUTIONS = (240, 240, 240, 240, 240, 150, 96, 60)  # each view is reduced to one of these
SMALL_RESOLUTIONS = (64, 64, 64, 48, 40, 32, 32, 24)


class Feed:
    """Batches of views; the number of the step decides what is drawn."""

    def __init__(self, sharp: Images, small: Images, batch: int, seed: int) -> None:
        device = sharp.sizes_N2.device
        self.batch, self.seed, self.device = batch, seed, device
        first = round(SHARP_SHARE * batch)
        self.pools = (
            (sharp, first, losses_of_resolution(SHARP_SIDE, SHARP_RESOLUTIONS, device)),
            (small, batch - first, losses_of_resolution(SMALL_SIDE, SMALL_RESOLUTIONS, device)),
        )
        self.show: Callable[[Views, int], Tensor] = render
        self.finish: Callable[[Tensor, Mixing], Tensor] = mixed_and_normalised

    def compile(self) -> None:
        self.show = torch.compile(render, dynamic=False)
        self.finish = torch.compile(mixed_and_normalised, dynamic=False)

    def __call__(self, step: int, sizes: list[int]) -> list[Tensor]:
        """Show the step's views at each of these sizes, normalised."""
        seed = 4 * (self.seed * 10_000_000 + step)
        views = [
            draw_views(images, count, bank, seed + number)
            for number, (images, count, bank) in enumerate(self.pools)
        ]
        order = torch.Generator(self.device).manual_seed(seed + 2)
        shuffled = torch.randperm(self.batch, device=self.device, generator=order)
        mixing = draw_mixing(self.batch, self.device, seed + 3)
        shown = (torch.cat([self.show(v, px) for v in views])[shuffled] for px in sizes)
        return [self.finish(x, mixing) for x in shown]


def mixed_and_normalised(x: Tensor, mixing: Mixing) -> Tensor:
    return normalise(mix(x, mixing))

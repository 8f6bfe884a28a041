"""Random views of images, which teacher and student see alike, each at its own size.

Crop, flip, colour, loss of resolution, mixup and cutmix are draws; `render` shows what was drawn at
any number of pixels. All of it runs on the device, and one seed gives the same views again.
"""

import math
from typing import NamedTuple

import torch
from images import Images
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SMALLEST_CROP, JITTER = 0.15, 0.3  # share of the area; strength of the changes of colour
MIXED = 2 / 3  # share of the views that are two images, half of them mixup, half cutmix


class Views(NamedTuple):
    """A batch's images and how each is shown; every field but the pixels is a random draw."""

    pixels_NCSS: Tensor  # uint8
    box_N4: Tensor  # top, left, height, width of the crop, in pixels
    flip_N: Tensor  # bool
    blur_NSS: Tensor  # takes a side to a lower resolution and back
    colour_N3: Tensor  # factors of brightness, contrast, saturation


class Mixing(NamedTuple):
    """A batch's mixtures of each view with the next one."""

    share_N: Tensor  # how much of the view itself is shown
    cut_N: Tensor  # bool: the other comes as a box (cutmix) rather than as a veil (mixup)
    centre_N2: Tensor  # centre of that box, in [0, 1]


def draw_views(images: Images, count: int, bank_RSS: Tensor, seed: int) -> Views:
    """Draw so many views; each gets a loss of resolution of the bank."""
    device = images.sizes_N2.device
    generator = torch.Generator(device).manual_seed(seed)
    chosen = torch.randint(len(images), (count,), device=device, generator=generator)
    blur = torch.randint(len(bank_RSS), (count,), device=device, generator=generator)
    draw = torch.rand(8, count, device=device, generator=generator)
    height_N, width_N = images.sizes_N2[chosen].T
    area_N = height_N * width_N * (SMALLEST_CROP + (1 - SMALLEST_CROP) * draw[0])
    ratio_N = torch.exp((2 * draw[1] - 1) * math.log(4 / 3))
    tall_N = torch.minimum((area_N * ratio_N).sqrt(), height_N)
    wide_N = torch.minimum((area_N / ratio_N).sqrt(), width_N)
    top_N, left_N = draw[2] * (height_N - tall_N), draw[3] * (width_N - wide_N)
    return Views(
        pixels_NCSS=images.squares_NSS3[chosen].permute(0, 3, 1, 2),
        box_N4=torch.stack([top_N, left_N, tall_N, wide_N], 1),
        flip_N=draw[4] < 0.5,
        blur_NSS=bank_RSS[blur],
        colour_N3=(1 + JITTER * (2 * draw[5:8] - 1)).T,
    )


def draw_mixing(count: int, device: torch.device, seed: int) -> Mixing:
    generator = torch.Generator(device).manual_seed(seed)
    draw = torch.rand(5, count, device=device, generator=generator)
    share_N = torch.where(draw[0] < MIXED, draw[1], 1.0)
    return Mixing(share_N, draw[2] < 0.5, draw[3:5].T)


def plain_views(images: Images, whole: float = 256 / 224) -> Views:
    """The test transform: the centre square, `whole` times smaller than the short side."""
    size_N = images.sizes_N2.amin(1) / whole
    corner_N2 = (images.sizes_N2 - size_N[:, None]) / 2
    box_N4 = torch.cat([corner_N2, size_N[:, None], size_N[:, None]], 1)
    same_SS = torch.eye(images.side, device=size_N.device)
    return Views(
        pixels_NCSS=images.squares_NSS3.permute(0, 3, 1, 2),
        box_N4=box_N4,
        flip_N=torch.zeros(len(images), dtype=torch.bool, device=size_N.device),
        blur_NSS=same_SS.expand(len(images), -1, -1),
        colour_N3=torch.ones(len(images), 3, device=size_N.device),
    )


def render(views: Views, px: int) -> Tensor:
    """The views [N, 3, px, px] from 0 to 1, before any mixing."""
    side = views.blur_NSS.shape[-1]
    top, left, height, width = views.box_N4.T
    rows_NPS = resampling(top, height, px, side) @ views.blur_NSS
    columns_NPS = resampling(left, width, px, side)
    columns_NPS = torch.where(views.flip_N[:, None, None], columns_NPS.flip(1), columns_NPS)
    columns_NPS = columns_NPS @ views.blur_NSS
    x = views.pixels_NCSS.float() / 255
    x = rows_NPS[:, None] @ x @ columns_NPS[:, None].mT
    brightness, contrast, saturation = views.colour_N3.T[:, :, None, None, None]
    x = x * brightness
    x = torch.lerp(x.mean((1, 2, 3), keepdim=True), x, contrast)
    return torch.lerp(x.mean(1, keepdim=True), x, saturation).clamp(0, 1)


def mix(x: Tensor, mixing: Mixing) -> Tensor:
    """Each image mixed with the next one of the batch."""
    cut_N11, share_N11 = mixing.cut_N[:, None, None], mixing.share_N[:, None, None]
    at_P = (torch.arange(x.shape[-1], device=x.device) + 0.5) / x.shape[-1]
    inside_N2P = (at_P - mixing.centre_N2[..., None]).abs() < (1 - share_N11).sqrt() / 2
    outside_NHW = ~(inside_N2P[:, 0, :, None] & inside_N2P[:, 1, None, :])
    share_NHW = torch.where(cut_N11, outside_NHW.float(), share_N11)
    return torch.lerp(x.roll(1, 0), x, share_NHW[:, None])


def normalise(x_NCHW: Tensor) -> Tensor:
    return torch.stack([(x_NCHW[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)


def resampling(start_N: Tensor, length_N: Tensor, out: int, source: int) -> Tensor:
    """Bicubic resampling of [start, start + length) to `out` pixels: matrices [N, out, source]."""
    step_N = length_N / out
    outs, sources = (torch.arange(size, device=start_N.device) for size in (out, source))
    at_NO = start_N[:, None] + (outs + 0.5) * step_N[:, None] - 0.5
    far = (at_NO[..., None] - sources).abs()
    far = far / step_N.clamp(min=1)[:, None, None]  # a wider kernel when shrinking: antialiasing
    near, rim = 1.5 * far**3 - 2.5 * far**2 + 1, -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2
    kernel = torch.where(far < 1, near, torch.where(far < 2, rim, 0.0))
    return kernel / kernel.sum(-1, keepdim=True)


def losses_of_resolution(side: int, sides: tuple[int, ...], device: torch.device) -> Tensor:
    """Matrices [R, side, side]: each shrinks a side to so many pixels and enlarges it again."""
    zero = torch.zeros(1)
    return torch.cat(
        [
            resampling(zero, zero + small, side, small) @ resampling(zero, zero + side, small, side)
            for small in sides
        ]
    ).to(device)

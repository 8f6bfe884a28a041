"""Crops and resizing for whole batches, on any device.

Resizing with a filter is linear and separable, so a crop-and-resize of an image is two matrix
products, ``rows [S, H] @ image [H, W] @ columns [W, S]``, and a batch of them is two batched
products. The filters (triangle for training, that of the weights for testing, mostly cubic) widen
when they shrink, exactly as Pillow's do: what comes out is what Pillow gives, up to its rounding to
whole grey values.
"""

import math

import torch
from torch import Tensor

from dafuse.data.dataset import Augmentation
from dafuse.data.preprocessing import Interpolation, Preprocessing


def random_crops(
    sizes_N2: Tensor, augmentation: Augmentation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Boxes [N, 4] (top, left, height, width) of a random resized crop, and flips [N].

    Ten candidates are drawn for each image and the first that fits is taken; where none fits, the
    largest centre crop of an allowed aspect. Drawn on the CPU: one stream of numbers everywhere.
    """
    count = len(sizes_N2)
    height, width = sizes_N2.double().unbind(1)
    u_N10 = torch.rand(count, 10, generator=generator, dtype=torch.float64)
    v_N10 = torch.rand(count, 10, generator=generator, dtype=torch.float64)
    low, high = augmentation.scale
    area = (height * width)[:, None] * (low + (high - low) * u_N10)
    log_low, log_high = math.log(augmentation.ratio[0]), math.log(augmentation.ratio[1])
    aspect = torch.exp(log_low + (log_high - log_low) * v_N10)
    w_N10, h_N10 = torch.round(torch.sqrt(area * aspect)), torch.round(torch.sqrt(area / aspect))
    fits = (w_N10 >= 1) & (h_N10 >= 1) & (w_N10 <= width[:, None]) & (h_N10 <= height[:, None])
    chosen = fits.int().argmax(1, keepdim=True)
    h, w = h_N10.gather(1, chosen)[:, 0], w_N10.gather(1, chosen)[:, 0]

    fallback_w = torch.minimum(width, torch.round(height * augmentation.ratio[1]).clamp(min=1))
    fallback_h = torch.minimum(height, torch.round(width / augmentation.ratio[0]).clamp(min=1))
    none = ~fits.any(1)
    h, w = torch.where(none, fallback_h, h), torch.where(none, fallback_w, w)

    where = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    top = torch.where(
        none, torch.floor((height - h) / 2), torch.floor(where[:, 0] * (height - h + 1))
    )
    left = torch.where(
        none, torch.floor((width - w) / 2), torch.floor(where[:, 1] * (width - w + 1))
    )
    flips = torch.rand(count, generator=generator) < augmentation.flip
    return torch.stack([top, left, h, w], 1).float(), flips


def centre_crops(sizes_N2: Tensor, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Return boxes [N, 4] of the test transform, and flips [N], which are all False."""
    boxes_N4 = torch.from_numpy(preprocessing.centre_boxes(sizes_N2.numpy()))
    return boxes_N4, torch.zeros(len(boxes_N4), dtype=torch.bool)


def crop_and_resize(
    pixels_B3HW: Tensor,
    sizes_B2: Tensor,
    boxes_B4: Tensor,
    flips_B: Tensor,
    size: int,
    kernel: Interpolation,
    confined: bool,
) -> Tensor:
    """Float images [B, 3, size, size] in 0..255, each cut from its box and resized, then flipped.

    ``pixels`` may be padded at the bottom and the right; ``sizes`` says how much is image. A filter
    that is confined sees nothing outside the box (training); else it sees the whole image.
    """
    top, left, h, w = boxes_B4.unbind(1)
    height, width = sizes_B2.unbind(1)
    rows_BSH = _resize_matrix(top, h, height, pixels_B3HW.shape[2], size, kernel, confined)
    cols_BSW = _resize_matrix(left, w, width, pixels_B3HW.shape[3], size, kernel, confined)
    cols_BSW = torch.where(flips_B[:, None, None], cols_BSW.flip(1), cols_BSW)
    narrow = pixels_B3HW.to(rows_BSH.dtype) @ cols_BSW[:, None].transpose(2, 3)
    images = rows_BSH[:, None] @ narrow.clamp_(0, 255)  # Pillow, too, clips between its passes
    return images.clamp(0, 255)


def _resize_matrix(
    start_B: Tensor,
    length_B: Tensor,
    limit_B: Tensor,
    extent: int,
    size: int,
    kernel: Interpolation,
    confined: bool,
) -> Tensor:
    """Return [B, size, extent]: a row has the weights of one output pixel, which sum to 1."""
    step = (length_B / size)[:, None, None]  # input pixels per output pixel
    reach = step.clamp(min=1)  # a shrinking filter widens
    out = torch.arange(size, device=start_B.device, dtype=start_B.dtype) + 0.5
    centre = start_B[:, None, None] + out[None, :, None] * step
    pixel = torch.arange(extent, device=start_B.device, dtype=start_B.dtype)[None, None]
    distance = ((pixel + 0.5 - centre) / reach).abs()
    weight = _cubic(distance) if kernel == "bicubic" else (1 - distance).clamp(min=0)
    low = start_B if confined else torch.zeros_like(start_B)
    high = start_B + length_B if confined else limit_B.to(start_B.dtype)
    inside = (pixel >= low[:, None, None]) & (pixel < high[:, None, None])
    weight = weight * inside
    return weight / weight.sum(2, keepdim=True)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' cubic convolution kernel with Pillow's a = -0.5."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))

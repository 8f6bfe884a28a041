"""Decoded images of any sizes, as uint8 on the device, picked in batches without a loop."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class PixelStore:
    """All images of a source back to back in one buffer; a batch is gathered and padded at once."""

    def __init__(self, images: Sequence[np.ndarray] | np.ndarray, device: torch.device) -> None:
        self.sizes_N2 = torch.tensor([image.shape[:2] for image in images]).reshape(-1, 2)
        self.uniform = bool((self.sizes_N2 == self.sizes_N2[:1]).all())
        self.on_device_N2 = self.sizes_N2.to(device)
        if self.uniform:
            stacked = np.asarray(images, dtype=np.uint8)  # may be none at all: no test images
            self.pixels = torch.from_numpy(np.ascontiguousarray(stacked)).to(device)
            return
        flat = np.concatenate([image.reshape(-1, 3) for image in images])
        self.pixels = torch.from_numpy(flat).to(device)
        areas = self.sizes_N2.prod(1)
        self.starts_N = (areas.cumsum(0) - areas).to(device)

    @property
    def largest(self) -> int:
        """Pixels of an image padded to the largest height and width there are."""
        return int(self.sizes_N2.amax(0).prod()) if len(self.sizes_N2) else 0

    def pick(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [B, 3, H, W] uint8 padded to the batch's largest image, and sizes [B, 2].

        ``index`` is on the CPU, so that the padding is known without waiting for the device.
        """
        device_index = index_B.to(self.pixels.device, non_blocking=True)
        sizes_B2 = self.on_device_N2[device_index]
        if self.uniform:
            return self.pixels[device_index].permute(0, 3, 1, 2), sizes_B2
        height, width = self.sizes_N2[index_B].amax(0).tolist()
        h_B11, w_B11 = sizes_B2[:, 0, None, None], sizes_B2[:, 1, None, None]
        y = torch.arange(height, device=h_B11.device)[None, :, None]
        x = torch.arange(width, device=h_B11.device)[None, None, :]
        start = self.starts_N[device_index][:, None, None]
        where_BHW = start + torch.minimum(y, h_B11 - 1) * w_B11 + torch.minimum(x, w_B11 - 1)
        return self.pixels[where_BHW].permute(0, 3, 1, 2), sizes_B2

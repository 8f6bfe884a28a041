"""What a set of weights expects of its images."""

from dataclasses import dataclass

import numpy as np

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class Preprocessing:
    """What a set of weights expects of its images; it belongs to the weights' tag."""

    size: int  # side of the square input
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int  # short side before the centre crop at test time: 256 for 224

    def centre_boxes(self, sizes_N2: np.ndarray) -> np.ndarray:
        """What of images of these heights and widths is resized to the square at test time.

        Boxes [N, 4] (top, left, height, width): resizing the short side and the centre crop in one.
        """
        height, width = sizes_N2.astype(np.float64).T
        short = np.minimum(height, width)
        # torchvision truncates the long side to whole pixels, crops at whole pixels of the resized
        new_h, new_w = np.floor(height * self.resize / short), np.floor(width * self.resize / short)
        top, left = np.round((new_h - self.size) / 2), np.round((new_w - self.size) / 2)
        per_h, per_w = height / new_h, width / new_w
        boxes = [top * per_h, left * per_w, self.size * per_h, self.size * per_w]
        return np.stack(boxes, axis=1).astype(np.float32)

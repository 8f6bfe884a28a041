"""The preprocessing that a set of weights expects."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from PIL import Image

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
SLAB = 2**18  # pixels that are resized together: they stay in the cache
Interpolation = Literal["bicubic", "bilinear"]
# the middle of the image in its own shape, or of all of it squeezed into a square
Crop = Literal["center", "squash"]
INTERPOLATIONS, CROPS = get_args(Interpolation), get_args(Crop)


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that a set of weights expects; it belongs to the weights' tag."""

    size: int  # side of the square input
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int  # short side before the centre crop at test time: 256 for 224
    interpolation: Interpolation = "bicubic"
    crop: Crop = "center"

    def centre_boxes(self, sizes_N2: np.ndarray) -> np.ndarray:
        """Return the boxes [N, 4] that are resized to the square at test time.

        A box (top, left, height, width) does in one what resizing the short side and then cropping
        the centre would do.
        """
        height, width = sizes_N2.astype(np.float64).T
        if self.crop == "squash":
            new_h = new_w = np.full_like(height, self.resize)
        else:  # torchvision truncates the long side to whole pixels
            short = np.minimum(height, width)
            new_h, new_w = (np.floor(side * self.resize / short) for side in (height, width))
        # it crops at whole pixels of the resized image
        top, left = np.round((new_h - self.size) / 2), np.round((new_w - self.size) / 2)
        per_h, per_w = height / new_h, width / new_w
        boxes = [top * per_h, left * per_w, self.size * per_h, self.size * per_w]
        return np.stack(boxes, axis=1).astype(np.float32)

    def centre_square(self, pixels_HW3: np.ndarray) -> np.ndarray:
        """Return float32 [3, S, S] in 0..255: the test transform of `data.transforms`, by Pillow.

        It resizes floats, a channel at a time, so that nothing is rounded to whole grey values:
        rounding moved probabilities by up to 0.04. It goes sideways first, then clips, as there,
        and takes a few rows at a time, which halves the time and memory of a large photograph.
        """
        height, width, _ = pixels_HW3.shape
        (box,) = self.centre_boxes(np.array([[height, width]])).tolist()
        top, left, bottom, right = box[0], box[1], box[0] + box[2], box[1] + box[3]
        bottom, right = min(bottom, height), min(right, width)
        at_once, kernel = max(1, SLAB // width), Image.Resampling[self.interpolation.upper()]
        square_3SS = np.empty((3, self.size, self.size), np.float32)
        for channel in range(3):
            narrow = []
            for start in range(0, height, at_once):
                rows_RW = pixels_HW3[start : start + at_once, :, channel].astype(np.float32)
                image, count = Image.fromarray(rows_RW), len(rows_RW)
                image = image.resize((self.size, count), kernel, box=(left, 0, right, count))
                narrow.append(np.asarray(image))
            image = Image.fromarray(np.concatenate(narrow).clip(0, 255))
            image = image.resize((self.size, self.size), kernel, box=(0, top, self.size, bottom))
            square_3SS[channel] = np.asarray(image).clip(0, 255)
        return square_3SS

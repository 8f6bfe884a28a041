"""What a set of weights expects of its images."""

from dataclasses import dataclass

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

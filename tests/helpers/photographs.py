"""Real photographs, from packages that the tests need anyway."""

from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image
from sklearn.datasets import load_sample_images

from dafuse.data.images import read_image


def photographs() -> list[np.ndarray]:
    """A temple, a flower, a portrait; and parts of them, of several sizes and aspects."""
    portrait = read_image(Path(get_data_path(), "sample_data", "grace_hopper.jpg"))
    whole = [*load_sample_images().images, portrait]
    parts = [image[50:170, 200:480] for image in whole]
    parts += [image[200:400, 100:181] for image in whole]
    parts += [image[-40:, :40] for image in whole]
    return [*whole, *parts]


def write_photographs(folder: Path) -> list[Path]:
    """Write photographs as files of several kinds."""
    folder.mkdir()
    files = []
    for number, pixels in enumerate(photographs()):
        files.append(folder / f"{number}.{('jpg', 'png', 'webp')[number % 3]}")
        Image.fromarray(pixels).save(files[-1])
    return files

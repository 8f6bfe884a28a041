"""Drawings: the same for the same seed, different for different numbers, not told by colour."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dafuse.data.sketches import SKETCHES, sketch, write_sketches
from dafuse.errors import DafuseError


@pytest.mark.parametrize("name", SKETCHES)
def test_a_drawing_depends_on_name_number_seed_and_height_alone(name: str) -> None:
    pixels = sketch(name, 3, seed=1, height=60)
    assert pixels.shape == (60, 80, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, sketch(name, 3, seed=1, height=60))
    assert not np.array_equal(pixels, sketch(name, 4, seed=1, height=60))
    assert not np.array_equal(pixels, sketch(name, 3, seed=2, height=60))


def test_files_are_written_by_class_and_more_leave_the_first_as_they_were(tmp_path: Path) -> None:
    root = write_sketches(tmp_path, ["fir", "city at night"], 2, seed=0, height=60)
    before = (root / "fir" / "001.jpg").read_bytes()
    write_sketches(tmp_path, ["fir"], 3, seed=0, height=60)
    assert (root / "fir" / "001.jpg").read_bytes() == before
    found = sorted(file.relative_to(root).as_posix() for file in root.glob("*/*"))
    assert found == [
        *(f"city at night/00{number}.jpg" for number in range(2)),
        *(f"fir/00{number}.jpg" for number in range(3)),
    ]
    assert Image.open(root / "fir" / "000.jpg").size == (80, 60)


def test_colour_alone_does_not_tell_what_a_drawing_shows() -> None:
    """The nearest mean colour finds few of them."""
    names = list(SKETCHES)

    def colours(numbers: range) -> np.ndarray:
        return np.array([[sketch(name, i, 0, 32).mean((0, 1)) for i in numbers] for name in names])

    means_C3, asked_CN3 = colours(range(8)).mean(1), colours(range(8, 14))
    apart_CNC = np.linalg.norm(asked_CN3[:, :, None] - means_C3, axis=-1)
    right = (apart_CNC.argmin(-1) == np.arange(len(names))[:, None]).mean()
    assert right < 0.5


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(DafuseError, match="no sketch is called 'unicorn'; there are house"):
        sketch("unicorn", 0, 0)

"""A small share of the storm's pictures and tables; `python -m faults pictures` has more."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from dafuse.data.images import UnreadableImage, read_image
from faults.corpus import HOSTILE, honest
from faults.pictures import Pictures
from faults.trial import Outcome
from helpers.small_datasets import small_dataset


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pictures]:
    part = Pictures(tmp_path_factory.mktemp("pictures"))
    yield part
    part.close()


@pytest.mark.parametrize(
    "kind", ["pictures, predicted", "pictures, learned", "names of classes", "tables"]
)
def test_hostile_files_are_named_and_change_nothing(pictures: Pictures, kind: str) -> None:
    for seed in range(2):
        trial = pictures.tried(kind, seed, Random(seed))
        assert trial.outcome == Outcome.SURVIVED, trial


def test_a_picture_is_the_same_in_every_spelling() -> None:
    random, pixels = Random(0), small_dataset([1]).train.items[0]
    for _ in range(150):
        found = honest(random, Image.fromarray(pixels))
        read = read_image(found.data)
        if found.exact:
            np.testing.assert_array_equal(read, pixels)
        assert read.shape == np.shape(pixels)


@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"text"}))
def test_what_is_no_picture_is_refused(tmp_path: Path, kind: str) -> None:
    for seed in range(8):
        data = HOSTILE[kind](Random(seed))
        (tmp_path / "a.png").write_bytes(data)
        for source in (data, tmp_path / "a.png"):
            with pytest.raises(UnreadableImage) as caught:
                read_image(source)
            assert "\n" not in str(caught.value)

"""The drawn data set: same seed, same pixels; every character told apart; fonts held out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import get_data_path
from PIL import ImageDraw, ImageFont

from dafuse.data.glyphs import BRIGHTNESS, CHARACTERS, TEST_ONLY_FONTS, TRAIN_FONTS, glyphs
from dafuse.errors import DafuseError


def test_counts_classes_and_augmentation() -> None:
    dataset = glyphs(train_per_class=3, test_per_class=2, size=32)
    assert isinstance(dataset.train.items, np.ndarray)
    assert dataset.train.items.shape == (62 * 3, 32, 32, 3)
    assert dataset.train.items.dtype == np.uint8
    assert np.bincount(dataset.train.labels).tolist() == [3] * 62
    assert np.bincount(dataset.test.labels).tolist() == [2] * 62
    assert dataset.classes[0] == "upper A"
    assert dataset.classes[26] == "lower a"
    assert dataset.classes[52] == "digit 0"
    assert len({name.casefold() for name in dataset.classes}) == 62
    assert dataset.augmentation.flip == 0.0
    assert dataset.augmentation.scale == (0.5, 1.0)


def test_the_seed_decides_everything() -> None:
    first, again, other = (glyphs(2, 2, seed=seed, size=32) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_more_images_keep_the_first_ones() -> None:
    few, many = glyphs(2, 1, size=32), glyphs(4, 3, size=32)
    for label in (0, 30, 61):
        for part in ("train", "test"):
            little, much = getattr(few, part), getattr(many, part)
            old = little.items[little.labels == label]
            np.testing.assert_array_equal(old, much.items[much.labels == label][: len(old)])


def test_every_font_draws_every_character_differently() -> None:
    assert len(TEST_ONLY_FONTS) == 5
    assert not set(TRAIN_FONTS) & set(TEST_ONLY_FONTS)
    for font in (*TRAIN_FONTS, *TEST_ONLY_FONTS):
        face = ImageFont.truetype(Path(get_data_path(), "fonts", "ttf", f"{font}.ttf"), 40)
        drawn = [face.getmask(character) for character in CHARACTERS]
        assert all(mask.getbbox() for mask in drawn), font
        assert len({(mask.size, bytes(mask)) for mask in drawn}) == len(CHARACTERS), font


def test_half_of_the_test_images_are_in_fonts_never_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []
    write = ImageDraw.ImageDraw.text

    def spy(*arguments: Any, font: ImageFont.FreeTypeFont, **others: Any) -> None:
        used.append(Path(font.path).stem)
        write(*arguments, font=font, **others)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", spy)
    glyphs(train_per_class=4, test_per_class=4, size=16)
    train, test = used[: 62 * 4], used[62 * 4 :]
    assert set(train) == set(TRAIN_FONTS)
    unseen = [font in TEST_ONLY_FONTS for font in test]
    assert unseen == [False, True] * (62 * 2)
    assert {font for font, new in zip(test, unseen, strict=True) if new} == set(TEST_ONLY_FONTS)


def test_characters_are_visible() -> None:
    dataset = glyphs(4, 0, size=32)
    assert isinstance(dataset.train.items, np.ndarray)
    brightness = dataset.train.items.astype(float) @ BRIGHTNESS
    spread = np.ptp(np.percentile(brightness, [1, 99], axis=(1, 2)), axis=0)
    assert spread.min() > 40  # blank images of this kind would have noise only
    assert len(np.unique(dataset.train.items.reshape(248, -1), axis=0)) == 248


@pytest.mark.parametrize("wrong", [{"train_per_class": 0}, {"test_per_class": -1}, {"size": 4}])
def test_refuses_nonsense(wrong: dict[str, int]) -> None:
    with pytest.raises(DafuseError, match="glyphs needs"):
        glyphs(**wrong)

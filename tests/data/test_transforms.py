"""Batched crops and resizing against torchvision and Pillow, one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision import transforms as tv

from dafuse.data.dataset import Augmentation
from dafuse.data.preprocessing import Crop, Interpolation, Preprocessing
from dafuse.data.transforms import centre_crops, crop_and_resize, random_crops

HALF = (0.5, 0.5, 0.5)
TRAINING: tuple[Interpolation, bool] = ("bilinear", True)  # the filter, and that it is confined
TESTING: tuple[Interpolation, bool] = ("bicubic", False)
ROUNDING = 1.5  # Pillow rounds to whole grey values after each of its two passes, we never do


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def preprocessing(size: int, resize: int | None = None) -> Preprocessing:
    return Preprocessing(size, HALF, HALF, resize or round(size * 256 / 224))


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Soft blobs with a little noise on them, as photographs are."""
    rng = np.random.default_rng(seed)
    blobs = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8))
    image = np.array(blobs.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
    return np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8)


def padded(images: list[np.ndarray], fill: int = 255) -> tuple[Tensor, Tensor]:
    """Pixels [B, 3, H, W] with ``fill`` below and beside the smaller images, and sizes [B, 2]."""
    sizes = torch.tensor([image.shape[:2] for image in images])
    height, width = sizes.amax(0).tolist()
    pixels = torch.full((len(images), 3, height, width), fill, dtype=torch.uint8)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[0], : image.shape[1]] = torch.from_numpy(image).permute(2, 0, 1)
    return pixels, sizes


def as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


# ---- boxes of the random resized crop


@st.composite
def augmentations(draw: st.DrawFn) -> Augmentation:
    low, aspect = draw(st.floats(0.01, 1)), draw(st.floats(0.2, 1.9))
    high, highest = draw(st.floats(low, 1)), draw(st.floats(max(aspect, 0.6), 5))
    return Augmentation((low, high), (aspect, highest))


lengths = st.integers(1, 600)
some_sizes = st.lists(st.tuples(lengths, lengths), min_size=1, max_size=8)


@given(some_sizes, augmentations(), st.integers(0, 999))
@example([(1, 1), (1, 600), (600, 1)], Augmentation(), 0)
def test_boxes_are_whole_pixels_inside_the_image(
    sizes: list[tuple[int, int]], augmentation: Augmentation, seed: int
) -> None:
    sizes_N2 = torch.tensor(sizes)
    boxes, flips = random_crops(sizes_N2, augmentation, generator(seed))
    assert boxes.shape == (len(sizes), 4)
    assert flips.shape == (len(sizes),)
    assert flips.dtype == torch.bool
    assert torch.equal(boxes, boxes.round())
    top, left, height, width = boxes.unbind(1)
    assert bool((top >= 0).all() and (left >= 0).all())
    assert bool((height >= 1).all() and (width >= 1).all())
    assert bool((top + height <= sizes_N2[:, 0]).all())
    assert bool((left + width <= sizes_N2[:, 1]).all())


@given(some_sizes, augmentations(), st.integers(0, 999))
def test_area_and_aspect_are_within_bounds_or_it_is_the_fallback(
    sizes: list[tuple[int, int]], augmentation: Augmentation, seed: int
) -> None:
    boxes, _ = random_crops(torch.tensor(sizes), augmentation, generator(seed))
    for (height, width), (top, left, h, w) in zip(sizes, boxes.tolist(), strict=True):
        # rounding moves each side by half a pixel at most
        least_area, most_area = (max(h - 0.5, 0) * max(w - 0.5, 0), (h + 0.5) * (w + 0.5))
        low, high = (share * height * width for share in augmentation.scale)
        within_area = least_area <= high + 1e-6 and most_area >= low - 1e-6
        least_aspect, most_aspect = max(w - 0.5, 0) / (h + 0.5), (w + 0.5) / max(h - 0.5, 1e-9)
        lowest, highest = augmentation.ratio
        within_aspect = least_aspect <= highest + 1e-6 and most_aspect >= lowest - 1e-6
        if not (within_area and within_aspect):
            assert (top, left, h, w) == fallback(height, width, augmentation)


def fallback(height: int, width: int, augmentation: Augmentation) -> tuple[int, int, int, int]:
    """torchvision's: the whole image, its long side cut to the nearest allowed aspect."""
    h, w = height, width
    if width / height < augmentation.ratio[0]:
        h = round(width / augmentation.ratio[0])
    elif width / height > augmentation.ratio[1]:
        w = round(height * augmentation.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (10, 1000, (0, 493, 10, 13)),  # too wide: round(10 · 4/3) columns in the middle
        (1000, 10, (493, 0, 13, 10)),
        (1, 300, (0, 149, 1, 1)),
        (11, 401, (0, 193, 11, 15)),
    ],
)
def test_extreme_aspect_falls_back_to_the_centre(
    height: int, width: int, box: tuple[int, int, int, int]
) -> None:
    whole = Augmentation(scale=(0.9, 1.0))  # no such box has an allowed aspect
    boxes, _ = random_crops(torch.tensor([[height, width]] * 5), whole, generator())
    assert boxes.tolist() == [list(map(float, box))] * 5
    assert box == fallback(height, width, whole)


def test_only_the_images_that_need_it_fall_back() -> None:
    whole = Augmentation(scale=(0.9, 1.0))
    boxes, _ = random_crops(torch.tensor([[100, 100], [10, 1000], [100, 100]]), whole, generator())
    assert boxes[1].tolist() == [0, 493, 10, 13]
    for box in boxes[[0, 2]]:
        assert 0.88 <= box[2] * box[3] / 100**2 <= 1


def test_crops_are_decided_by_the_generator() -> None:
    sizes = torch.tensor([[37, 50], [400, 300], [64, 64]] * 20)
    state = torch.get_rng_state()
    boxes, flips = random_crops(sizes, Augmentation(), generator(3))
    again, flips_again = random_crops(sizes, Augmentation(), generator(3))
    other, other_flips = random_crops(sizes, Augmentation(), generator(4))
    assert torch.equal(boxes, again)
    assert torch.equal(flips, flips_again)
    assert not torch.equal(boxes, other)
    assert not torch.equal(flips, other_flips)
    assert torch.equal(torch.get_rng_state(), state)  # torch's global generator is left alone
    one = generator(3)
    random_crops(sizes, Augmentation(), one)
    assert not torch.equal(random_crops(sizes, Augmentation(), one)[0], boxes)


def test_every_place_is_equally_likely() -> None:
    quarter = Augmentation(scale=(0.25, 0.25), ratio=(1.0, 1.0))
    boxes, _ = random_crops(torch.full((5000, 2), 8), quarter, generator())
    assert boxes[:, 2:].unique().tolist() == [4]
    for place in boxes[:, :2].long().T:
        shares = place.bincount() / 5000
        torch.testing.assert_close(shares, torch.full((5,), 0.2), rtol=0, atol=0.025)


@pytest.mark.parametrize(("flip", "share"), [(0.0, 0.0), (0.5, 0.5), (0.2, 0.2), (1.0, 1.0)])
def test_chance_of_a_flip(flip: float, share: float) -> None:
    sizes = torch.full((4000, 2), 32)
    _, flips = random_crops(sizes, Augmentation(flip=flip), generator())
    assert flips.float().mean().item() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("height", "width", "augmentation"),
    [
        (224, 224, Augmentation()),
        (375, 500, Augmentation()),
        (500, 120, Augmentation()),  # many candidates do not fit
        (32, 32, Augmentation(scale=(0.5, 1.0), ratio=(0.5, 2.0))),
    ],
)
def test_distribution_is_torchvisions(height: int, width: int, augmentation: Augmentation) -> None:
    count = 4000
    sizes = torch.tensor([[height, width]]).expand(count, 2)
    ours, _ = random_crops(sizes, augmentation, generator(1))
    blank = torch.empty(3, height, width)
    scale, ratio = list(augmentation.scale), list(augmentation.ratio)
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        draws = [tv.RandomResizedCrop.get_params(blank, scale, ratio) for _ in range(count)]
    theirs = torch.tensor(draws, dtype=torch.float32)

    def summary(boxes: Tensor) -> Tensor:
        """Means and spreads of area, log aspect and the centre, as shares of the image."""
        top, left, h, w = boxes.unbind(1)
        values = [h * w / (height * width), (w / h).log(), (top + h / 2) / height]
        values = torch.stack([*values, (left + w / 2) / width])
        return torch.cat([values.mean(1), values.std(1)])

    # 4000 samples of spread ~0.28 have a mean that is good to 0.0045: this is about three of that
    torch.testing.assert_close(summary(ours), summary(theirs), rtol=0, atol=0.02)


# ---- resizing against Pillow

SIZES = [(32, 32), (33, 57), (57, 33), (64, 64), (75, 100), (131, 97), (7, 5), (1, 1), (2, 90)]


def train_with_pillow(image: np.ndarray, box: list[float], flip: bool, size: int) -> Tensor:
    top, left, h, w = map(round, box)
    cut = Image.fromarray(image).crop((left, top, left + w, top + h))
    cut = cut.resize((size, size), Image.Resampling.BILINEAR)
    return as_tensor(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else cut)


@pytest.mark.parametrize("size", [1, 17, 32, 64, 97])
@pytest.mark.parametrize("make", [noise, smooth])
def test_training_crops_are_pillows_in_a_padded_batch(size: int, make: type) -> None:
    images = [make(h, w, seed) for seed, (h, w) in enumerate(SIZES * 3)]
    pixels, sizes = padded(images)
    boxes, flips = random_crops(sizes, Augmentation(), generator(size))
    assert 0 < flips.sum() < len(flips)
    ours = crop_and_resize(pixels, sizes, boxes, flips, size, *TRAINING)
    assert ours.shape == (len(images), 3, size, size)
    for one, image, box, flip in zip(ours, images, boxes.tolist(), flips.tolist(), strict=True):
        theirs = train_with_pillow(image, box, flip, size)
        assert (one - theirs).abs().max() <= ROUNDING


@settings(max_examples=40)
@given(st.tuples(st.integers(1, 90), st.integers(1, 90)), st.integers(1, 60), st.integers(0, 9999))
def test_any_training_crop_is_pillows(hw: tuple[int, int], size: int, seed: int) -> None:
    image = noise(*hw, seed)
    pixels, sizes = padded([image])
    boxes, flips = random_crops(sizes, Augmentation(), generator(seed))
    ours = crop_and_resize(pixels, sizes, boxes, flips, size, *TRAINING)[0]
    theirs = train_with_pillow(image, boxes[0].tolist(), bool(flips[0]), size)
    assert (ours - theirs).abs().max() <= ROUNDING


def test_training_crop_does_not_look_outside_its_box() -> None:
    image = np.zeros((40, 40, 3), dtype=np.uint8)
    image[10:20, 12:30] = 100  # the box is all of one grey, everything around it black
    pixels, sizes = padded([image])
    boxes = torch.tensor([[10.0, 12.0, 10.0, 18.0]])
    for size in (5, 10, 64):
        out = crop_and_resize(pixels, sizes, boxes, torch.tensor([False]), size, *TRAINING)
        torch.testing.assert_close(out, torch.full((1, 3, size, size), 100.0))


def test_an_untouched_image_comes_back_exactly() -> None:
    image = noise(24, 24)
    pixels, sizes = padded([image, image])
    boxes = torch.tensor([[0.0, 0.0, 24.0, 24.0]] * 2)
    flips = torch.tensor([False, True])
    for how in (TRAINING, TESTING):
        out = crop_and_resize(pixels, sizes, boxes, flips, 24, *how)
        torch.testing.assert_close(out[0], pixels[0].float())
        torch.testing.assert_close(out[1], pixels[1].flip(2).float())


@pytest.mark.parametrize("how", [TRAINING, TESTING], ids=["training", "testing"])
def test_padding_changes_nothing(how: tuple[Interpolation, bool]) -> None:
    image = noise(31, 45)
    alone, size_alone = padded([image])
    boxes = torch.tensor([[3.0, 4.0, 28.0, 41.0]])
    flips = torch.tensor([True])
    expected = crop_and_resize(alone, size_alone, boxes, flips, 20, *how)
    for fill in (0, 255):
        pixels, sizes = padded([image, noise(50, 70)], fill)
        both = crop_and_resize(pixels, sizes, boxes.repeat(2, 1), flips.repeat(2), 20, *how)
        torch.testing.assert_close(both[:1], expected, atol=1e-3, rtol=0)


def test_values_stay_grey_values() -> None:
    """The cubic filter overshoots at edges; what it gives must still be 0..255."""
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    image[:, 8:] = 255
    pixels, sizes = padded([image])
    boxes, flips = centre_crops(sizes, preprocessing(64))
    out = crop_and_resize(pixels, sizes, boxes, flips, 64, *TESTING)
    assert out.min() == 0
    assert out.max() == 255


# ---- the test transform


def ours_at_test_time(images: list[np.ndarray], wanted: Preprocessing) -> Tensor:
    pixels, sizes = padded(images)
    boxes, flips = centre_crops(sizes, wanted)
    assert not flips.any()
    how = wanted.interpolation, False
    return crop_and_resize(pixels, sizes, boxes, flips, wanted.size, *how)


def torchvisions_at_test_time(image: np.ndarray, wanted: Preprocessing) -> Tensor:
    squashed = (wanted.resize, wanted.resize)
    to = squashed if wanted.crop == "squash" else wanted.resize
    resize = tv.Resize(to, tv.InterpolationMode(wanted.interpolation))
    return as_tensor(tv.CenterCrop(wanted.size)(resize(Image.fromarray(image))))


def pillows_at_test_time(image: np.ndarray, wanted: Preprocessing) -> Tensor:
    """Rows first, then columns, as every Pillow did before 13, which chooses by the shape.

    It clips between the two, so that the order is seen where edges are as sharp as in noise.
    """
    height, width = image.shape[:2]
    long_side = int(wanted.resize * max(height, width) / min(height, width))
    new_h, new_w = (wanted.resize, long_side) if height <= width else (long_side, wanted.resize)
    if wanted.crop == "squash":
        new_h = new_w = wanted.resize
    kernel = Image.Resampling[wanted.interpolation.upper()]
    both = Image.fromarray(image).resize((new_w, height), kernel).resize((new_w, new_h), kernel)
    return as_tensor(tv.CenterCrop(wanted.size)(both))


@pytest.mark.parametrize(
    ("height", "width", "size", "resize"),
    [
        (32, 32, 224, 256),  # CIFAR
        (375, 500, 224, 256),  # a photograph, landscape and portrait
        (500, 375, 224, 256),
        (64, 64, 64, 73),  # the packaged backbone's
        (64, 64, 64, 64),
        (501, 333, 224, 256),  # odd sizes
        (97, 300, 64, 73),
        (255, 257, 224, 256),
        (9, 31, 32, 37),
        (4, 3, 32, 37),
    ],
)
def test_test_transform_is_torchvisions(height: int, width: int, size: int, resize: int) -> None:
    wanted = preprocessing(size, resize)
    image, sharp = smooth(height, width), noise(height, width)
    difference = ours_at_test_time([image], wanted)[0] - torchvisions_at_test_time(image, wanted)
    assert difference.abs().max() <= 3
    assert difference.abs().mean() <= 0.4  # rounding, not a shifted image
    difference = ours_at_test_time([sharp], wanted)[0] - pillows_at_test_time(sharp, wanted)
    assert difference.abs().max() <= ROUNDING


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (64, 64), (9, 31), (97, 300)]
)
@pytest.mark.parametrize(
    ("interpolation", "crop", "resize"),
    [("bilinear", "center", 73), ("bicubic", "squash", 64), ("bilinear", "squash", 73)],
)
def test_so_it_is_with_other_filters_and_crops(
    interpolation: Interpolation, crop: Crop, resize: int, height: int, width: int
) -> None:
    wanted = Preprocessing(64, HALF, HALF, resize, interpolation, crop)
    image, sharp = smooth(height, width), noise(height, width)
    difference = ours_at_test_time([image], wanted)[0] - torchvisions_at_test_time(image, wanted)
    assert difference.abs().max() <= 3
    assert difference.abs().mean() <= 0.4
    difference = ours_at_test_time([sharp], wanted)[0] - pillows_at_test_time(sharp, wanted)
    assert difference.abs().max() <= ROUNDING
    square = torch.from_numpy(wanted.centre_square(sharp))  # what is taught and asked, by Pillow
    assert (square - ours_at_test_time([sharp], wanted)[0]).abs().max() <= 0.01


def test_test_transform_in_a_padded_batch() -> None:
    images = [smooth(h, w, seed) for seed, (h, w) in enumerate(SIZES) if min(h, w) > 1]
    wanted = preprocessing(48)
    for ours, image in zip(ours_at_test_time(images, wanted), images, strict=True):
        assert (ours - pillows_at_test_time(image, wanted)).abs().max() <= ROUNDING
        assert (ours - torchvisions_at_test_time(image, wanted)).abs().max() <= 3


@settings(max_examples=60)
@given(st.integers(1, 120), st.integers(1, 120), st.integers(1, 64), st.integers(0, 9999))
def test_any_test_transform_is_pillows(height: int, width: int, size: int, seed: int) -> None:
    assume(max(height, width) <= 20 * min(height, width))
    image, wanted = noise(height, width, seed), preprocessing(size)
    difference = ours_at_test_time([image], wanted)[0] - pillows_at_test_time(image, wanted)
    assert difference.abs().max() <= ROUNDING


def test_centre_box_of_224_is_seven_eighths_of_the_short_side() -> None:
    boxes, _ = centre_crops(torch.tensor([[256, 256], [512, 1024]]), preprocessing(224, 256))
    assert boxes.tolist() == [[16, 16, 224, 224], [32, 288, 448, 448]]

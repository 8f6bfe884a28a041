"""Images in files, of every kind and broken in every way; images that are arrays already."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dafuse.data.arrays import arrays, arrays_file
from dafuse.data.decoding import NO_PIXELS, decode_all
from dafuse.data.formats import readable_suffixes
from dafuse.data.images import REDUCED_PIXELS, UnreadableImage, read_image, reduced
from dafuse.errors import DafuseError
from dafuse.progress import Bar, Progress

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    image.save(path, **options)
    return path


def noise(height: int = 40, width: int = 60) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_rgb_png_is_exact_and_writable(tmp_path: Path) -> None:
    pixels = noise()
    image = read_image(save(Image.fromarray(pixels), tmp_path / "a.png"))
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, pixels)
    image[0, 0] = 1  # torch.from_numpy wants to own it


def test_grayscale_and_bilevel_become_three_equal_channels(tmp_path: Path) -> None:
    gray = noise()[..., 0]
    image = read_image(save(Image.fromarray(gray), tmp_path / "g.png"))
    np.testing.assert_array_equal(image, np.repeat(gray[..., None], 3, axis=2))
    bits = read_image(save(Image.new("1", (3, 2), 1), tmp_path / "b.png"))
    np.testing.assert_array_equal(bits, np.full((2, 3, 3), 255))


@pytest.mark.parametrize(
    ("size", "smaller"),
    [
        ((3000, 4000), (627, 836)),
        ((900, 1200), (627, 836)),
        ((4000, 3000), (836, 627)),
        ((725, 724), (724, 724)),
        ((100, 8000), (81, 6472)),  # 6476, the nearest, would be reduced once more
        ((1, 600_000), (1, 524_288)),
    ],
)
def test_a_reduced_picture_is_not_reduced_again(
    size: tuple[int, int], smaller: tuple[int, int]
) -> None:
    once = reduced(noise(*size))
    assert once.shape == (*smaller, 3)
    assert once.shape[0] * once.shape[1] <= REDUCED_PIXELS
    assert reduced(once) is once


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_lie_on_white(tmp_path: Path, mode: str) -> None:
    image = Image.new(mode, (2, 1))
    colour = (200,) * (len(mode) - 1)
    image.putpixel((0, 0), (*colour, 255))
    image.putpixel((1, 0), (*(0,) * len(colour), 0))
    pixels = read_image(save(image, tmp_path / "t.png"))
    assert pixels[0].tolist() == [[200, 200, 200], list(WHITE)]


def test_half_transparent_is_mixed_with_white(tmp_path: Path) -> None:
    pixels = read_image(save(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), tmp_path / "h.png"))
    assert np.all(abs(pixels.astype(int) - 127) <= 1)


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    for x in range(3):
        image.putpixel((x, 0), x)
    opaque = read_image(save(image, tmp_path / "p.png"))
    assert opaque[0].tolist() == [list(RED), list(GREEN), list(BLUE)]
    clear = read_image(save(image, tmp_path / "q.png", transparency=1))
    assert clear[0].tolist() == [list(RED), list(WHITE), list(BLUE)]
    gif = read_image(save(image, tmp_path / "q.gif", transparency=1))
    assert gif[0].tolist() == [list(RED), list(WHITE), list(BLUE)]


def test_rgb_png_with_a_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), RED)
    image.putpixel((1, 0), GREEN)
    pixels = read_image(save(image, tmp_path / "k.png", transparency=GREEN))
    assert pixels[0].tolist() == [list(RED), list(WHITE)]


def test_cmyk_jpeg(tmp_path: Path) -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta and yellow
    pixels = read_image(save(image, tmp_path / "c.jpg", quality=100))
    assert np.all(abs(pixels.astype(int) - RED) <= 6)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bit_gray_is_scaled_not_clipped(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)
    pixels = read_image(save(Image.fromarray(values), tmp_path / name))
    assert pixels[0, :, 0].tolist() == [0, 1, 128, 255]


def test_big_endian_16_bit(tmp_path: Path) -> None:
    image = Image.frombytes("I;16B", (3, 1), bytes([0, 0, 128, 0, 255, 255]))
    pixels = read_image(save(image, tmp_path / "b.tif"))
    assert pixels[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # a share of white
        ([0.0, 100.0, 255.0], [0, 100, 255]),  # already of 8 bits
        ([0.0, 257.0, 65535.0], [0, 1, 255]),  # of 16 bits
        ([-1.0, 0.0, 1.0], [0, 128, 255]),  # neither: stretched
        ([0.0, float("nan"), 1.0], [0, 0, 255]),
    ],
)
def test_float_tiff(tmp_path: Path, values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.array([values], dtype=np.float32))
    pixels = read_image(save(image, tmp_path / "f.tif"))
    assert pixels[0, :, 0].tolist() == expected


def test_32_bit_integers(tmp_path: Path) -> None:
    sixteen = Image.fromarray(np.array([[0, 65535]], dtype=np.int32))
    assert read_image(save(sixteen, tmp_path / "i.tif"))[0, :, 0].tolist() == [0, 255]
    wide = Image.fromarray(np.array([[-100000, 0, 100000]], dtype=np.int32))
    assert read_image(save(wide, tmp_path / "w.tif"))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("orientation", "top_left"),
    [(1, RED), (2, GREEN), (3, WHITE), (4, BLUE), (5, RED), (6, BLUE), (7, WHITE), (8, GREEN)],
)
def test_exif_rotation(tmp_path: Path, orientation: int, top_left: tuple[int, int, int]) -> None:
    image = Image.new("RGB", (32, 16))  # red green / blue white
    for colour, corner in [(RED, (0, 0)), (GREEN, (16, 0)), (BLUE, (0, 8)), (WHITE, (16, 8))]:
        image.paste(colour, (*corner, corner[0] + 16, corner[1] + 8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(image, tmp_path / "e.jpg", exif=exif, quality=100, subsampling=0)
    pixels = read_image(path)
    assert pixels.shape == ((16, 32, 3) if orientation <= 4 else (32, 16, 3))
    assert np.all(abs(pixels[2, 2].astype(int) - top_left) < 12)


def test_broken_exif_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = save(Image.new("RGB", (8, 8), RED), tmp_path / "x.jpg", exif=b"Exif\0\0garbage")
    assert read_image(path).shape == (8, 8, 3)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp"])
def test_animation_gives_the_first_frame(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options: dict[str, Any] = {"lossless": True} if name.endswith("webp") else {}
    path = tmp_path / name
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, **options)
    assert np.all(read_image(path) == RED)


def broken_files(folder: Path) -> dict[Path, str]:
    """Files that give no pixels, and a word of the reason."""
    buffer = io.BytesIO()
    Image.fromarray(noise(200, 200)).save(buffer, "JPEG")
    jpeg = buffer.getvalue()
    buffer = io.BytesIO()
    Image.fromarray(noise()).save(buffer, "PNG")
    png = buffer.getvalue()
    contents = {
        "empty.jpg": (b"", "empty"),
        "cut.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "cut.png": (png[: len(png) // 2], ""),
        "broken.png": (png[:60] + b"\0" * 40 + png[100:], ""),
        "head.jpg": (jpeg[:10], ""),
        "text.png": (b"<html>404 Not Found</html>" * 10, "not an image"),
    }
    for name, (data, _) in contents.items():
        (folder / name).write_bytes(data)
    return {folder / name: word for name, (_, word) in contents.items()}


def test_broken_files_say_why(tmp_path: Path) -> None:
    for path, word in broken_files(tmp_path).items():
        with pytest.raises(UnreadableImage) as caught:
            read_image(path)
        reason = str(caught.value)
        assert reason, path
        assert word in reason
        assert len(reason) < 120
        assert "\n" not in reason
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "gone.jpg")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [900, 300], ids=["over the limit", "over twice the limit"])
def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    path = save(Image.new("RGB", (40, 30)), tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(UnreadableImage, match="bomb"):
        read_image(path)


class RememberingProgress(Progress):
    """Keeps the bars it made."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, Bar]] = []

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        with super().bar(label, total) as bar:
            self.bars.append((label, bar))
            yield bar


def sources(folder: Path) -> tuple[list[Path], list[int]]:
    broken = list(broken_files(folder))
    good = [save(Image.fromarray(noise(10 + i, 20)), folder / f"{i}.png") for i in range(6)]
    mixed = [path for pair in zip(good, broken, strict=True) for path in pair]
    return mixed, [i for i, path in enumerate(mixed) if path in broken]


@pytest.mark.parametrize("workers", [1, 4])
def test_decode_all_keeps_order_and_finds_the_broken(tmp_path: Path, workers: int) -> None:
    paths, broken = sources(tmp_path)
    progress = RememberingProgress()
    decoded = decode_all(paths, workers, progress, max_bytes=10**9)
    [(label, bar)] = progress.bars
    assert label == "decode images"
    assert bar.done == bar.total == len(paths)
    assert sorted(decoded.unreadable) == broken
    assert decoded.images is not None
    for i, (path, image) in enumerate(zip(paths, decoded.images, strict=True)):
        expected = NO_PIXELS if i in broken else read_image(path)
        np.testing.assert_array_equal(image, expected)
        assert decoded.sizes[i].tolist() == list(expected.shape[:2])


def test_decode_all_past_the_memory_limit_still_verifies(tmp_path: Path) -> None:
    paths, broken = sources(tmp_path)
    whole = decode_all(paths, 2, Progress(), max_bytes=10**9)
    assert whole.images is not None
    total = sum(image.nbytes for image in whole.images)
    assert decode_all(paths, 2, Progress(), max_bytes=total).images is not None
    for max_bytes in (0, total // 2, total - 1):
        dropped = decode_all(paths, 2, Progress(), max_bytes=max_bytes)
        assert dropped.images is None
        assert sorted(dropped.unreadable) == broken
        np.testing.assert_array_equal(dropped.sizes, whole.sizes)


def test_decode_all_of_pixels_and_of_nothing() -> None:
    pixels = noise()[None].repeat(3, axis=0)
    decoded = decode_all(pixels, 2, Progress(), max_bytes=pixels.nbytes)
    assert decoded.images is not None
    assert len(decoded.images) == 3
    assert decoded.sizes.tolist() == [[40, 60]] * 3
    too_much = decode_all(pixels, 2, Progress(), max_bytes=pixels.nbytes - 1)
    assert too_much.images is None
    assert too_much.sizes.tolist() == decoded.sizes.tolist()
    nothing = decode_all([], 2, Progress(), max_bytes=0)
    assert (nothing.images, nothing.unreadable) == ([], {})


def test_suffixes_are_lower_case_with_a_dot() -> None:
    assert all(suffix == suffix.lower() and suffix[0] == "." for suffix in readable_suffixes())


# images that are arrays already


def error_of(source: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(DafuseError) as caught:
        source(*args, **options)
    return str(caught.value)


def says(text: str, *words: str) -> None:
    assert "\n" not in text, text
    for word in words:
        assert word in text, text


def pixels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *(shape or (4, 5, 3))), np.uint8)


def test_arrays_of_numbers_and_of_names() -> None:
    numbers = arrays(pixels(3), [0, 1, 1], pixels(1), [1])
    assert numbers.classes == ["0", "1"]
    names = arrays(pixels(3), ["dog", "cat", "cat"], pixels(1), np.array(["dog"], dtype=object))
    assert names.classes == ["cat", "dog"]
    assert names.train.labels.tolist() == [1, 0, 0]
    assert names.test.labels.tolist() == [1]
    ordered = arrays(pixels(2), ["dog", "cat"], pixels(0), [], classes=["dog", "cat"], name="pets")
    assert (ordered.name, ordered.classes) == ("pets", ["dog", "cat"])
    assert ordered.train.labels.tolist() == [0, 1]
    named = arrays(pixels(2), np.array([1, 0], np.uint8), pixels(0), [], classes=["dog", "cat"])
    assert named.train.labels.tolist() == [1, 0]


def test_gray_arrays_become_rgb() -> None:
    gray = pixels(2, 4, 5)
    dataset = arrays(gray, [0, 1], pixels(0, 4, 5), [])
    assert isinstance(dataset.train.items, np.ndarray)
    assert dataset.train.items.shape == (2, 4, 5, 3)
    np.testing.assert_array_equal(dataset.train.items[..., 2], gray)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_images": pixels(2).astype(np.float32)}, ["train_images", "uint8", "float32"]),
        ({"train_images": pixels(2, 3, 8, 8)}, ["[N, H, W, 3]", "[2, 3, 8, 8]"]),
        ({"test_images": pixels(1, 9)}, ["test_images", "[1, 9]"]),
        ({"train_labels": [0, 1, 1]}, ["train_labels", "each of 2"]),
        ({"train_labels": [0.0, 1.0]}, ["train_labels", "whole numbers"]),
        ({"train_labels": [0, -1]}, ["-1"]),
        ({"train_labels": [0, 2]}, ["no training image", "'1'"]),
        ({"test_labels": [2]}, ["test_labels", "0..1"]),
        ({"test_labels": ["a"]}, ["both be numbers"]),
        ({"classes": ["a", "a"]}, ["different names"]),
        ({"classes": ["a", "A"]}, ["only in case"]),
        ({"classes": ["a"]}, ["0..0"]),
        ({"classes": ["a", "b", "c"]}, ["no training image", "'c'"]),
        ({"train_labels": ["a", "b"], "test_labels": ["c"]}, ["'c'", "not one of the classes"]),
        ({"train_images": pixels(0), "train_labels": []}, ["nothing to learn"]),
    ],
)
def test_array_errors(changed: dict, words: list[str]) -> None:
    good = {
        "train_images": pixels(2),
        "train_labels": [0, 1],
        "test_images": pixels(1),
        "test_labels": [0],
    }
    says(error_of(arrays, **(good | changed)), *words)


def test_arrays_file(tmp_path: Path) -> None:
    contents: dict[str, Any] = {
        "train_images": pixels(2),
        "train_labels": np.array([1, 0]),
        "test_images": pixels(1),
        "test_labels": np.array([0]),
    }
    np.savez_compressed(tmp_path / "pets.npz", **contents, classes=np.array(["cat", "dog"]))
    dataset = arrays_file(tmp_path / "pets.npz")
    assert (dataset.name, dataset.classes) == ("pets", ["cat", "dog"])
    np.testing.assert_array_equal(dataset.train.items, contents["train_images"])
    says(error_of(arrays_file, tmp_path / "gone.npz"), "no file")
    (tmp_path / "broken.npz").write_bytes(b"x")
    says(error_of(arrays_file, tmp_path / "broken.npz"), "not a readable .npz")
    np.savez(tmp_path / "short.npz", train_images=pixels(2))
    says(error_of(arrays_file, tmp_path / "short.npz"), "lacks", "'train_labels'")
    pickled = contents | {"train_labels": np.array([{}, "a"], dtype=object)}
    np.savez(tmp_path / "pickled.npz", **pickled)
    says(error_of(arrays_file, tmp_path / "pickled.npz"), "plain arrays")
    whole = (tmp_path / "pets.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    says(error_of(arrays_file, tmp_path / "cut.npz"), "not a readable .npz")

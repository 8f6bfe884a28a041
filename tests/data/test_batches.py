"""Batches from arrays and files, kept on the device or streamed: the same images either way."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dafuse.data.arrays import arrays
from dafuse.data.batches import Batch, Loader
from dafuse.data.dataset import Dataset
from dafuse.data.folders import folder
from dafuse.data.preprocessing import NORMALISATIONS, Preprocessing
from dafuse.data.transforms import random_crops
from dafuse.errors import DafuseError
from dafuse.progress import Progress

CPU = torch.device("cpu")
GREY = Preprocessing(24, (0.0, 0.0, 0.0), (1 / 255,) * 3, resize=27)  # batches come out in 0..255
INTERPOLATION = 3.0  # grey values: Pillow, which streams, rounds twice
SHAPES = [(30, 40), (41, 33), (24, 24), (57, 90), (19, 25), (80, 31)]


class Heard(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def smooth(height: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    blobs = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return np.array(blobs.resize((width, height), Image.Resampling.BICUBIC))


def image_files(root: Path, shapes: list[tuple[int, int]] = SHAPES) -> Path:
    """Classes a, b and c; an image of each of the shapes for training, half of them for testing."""
    seed = 0
    for part, count in (("train", len(shapes)), ("test", len(shapes) // 2)):
        for name in "abc":
            (root / part / name).mkdir(parents=True)
            for shape in shapes[:count]:
                seed += 1
                path = root / part / name / f"{seed:03}.png"
                Image.fromarray(smooth(*shape, seed)).save(path)
    return root


def from_files(root: Path) -> Dataset:
    return folder(image_files(root))


def from_arrays(root: Path) -> Dataset:
    pixels = np.stack([smooth(30, 40, seed) for seed in range(27)])
    labels = np.arange(27) % 3
    return arrays(pixels[:18], labels[:18], pixels[18:], labels[18:], classes=["a", "b", "c"])


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(dataset: Dataset, preprocessing: Preprocessing = GREY, **options: object) -> Loader:
    return Loader(dataset, preprocessing, CPU, **({"workers": 0} | options))  # type: ignore[arg-type]


def joined(batches: object) -> Batch:
    images, labels = zip(*batches, strict=True)  # type: ignore[call-overload]
    return torch.cat(images), torch.cat(labels)


# ---- two ways to the same images


@pytest.mark.parametrize("make", [from_arrays, from_files])
@pytest.mark.parametrize("workers", [0, 1])
def test_streaming_gives_the_images_labels_and_order_of_the_device(
    tmp_path: Path, make: type, workers: int
) -> None:
    dataset = make(tmp_path)
    kept, streamed = loader(dataset), loader(dataset, memory_bytes=0, workers=workers)
    assert not kept.streams
    assert streamed.streams
    pairs = [
        (
            list(kept.train_batches(kept.dataset.train, 7, generator())),
            list(streamed.train_batches(streamed.dataset.train, 7, generator())),
        ),
        (
            list(kept.test_batches(kept.dataset.test, 4)),
            list(streamed.test_batches(streamed.dataset.test, 4)),
        ),
    ]
    for ours, theirs in pairs:
        assert len(ours) == len(theirs) > 1
        for (images, labels), (other_images, other_labels) in zip(ours, theirs, strict=True):
            assert torch.equal(labels, other_labels)
            assert images.shape == other_images.shape == (len(labels), 3, 24, 24)
            assert images.dtype == other_images.dtype == torch.float32
            assert (images - other_images).abs().max() <= INTERPOLATION
            assert (images - other_images).abs().mean() <= 0.4


def test_what_fits_is_kept_and_what_does_not_streams(tmp_path: Path) -> None:
    dataset = from_arrays(tmp_path)
    train_bytes, test_bytes = 18 * 30 * 40 * 3, 9 * 30 * 40 * 3
    assert loader(dataset, memory_bytes=train_bytes + test_bytes - 1).streams
    both = loader(dataset, memory_bytes=train_bytes + test_bytes)
    assert not both.streams


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_drawing_batches_leaves_torchs_global_generator_alone(
    tmp_path: Path, memory_bytes: int | None
) -> None:
    """Dropout draws from it: whether the data fits must not decide what a run learns."""
    source = loader(from_arrays(tmp_path), memory_bytes=memory_bytes)
    before = torch.get_rng_state()
    list(source.train_batches(source.dataset.train, 5, generator()))
    list(source.test_batches(source.dataset.test, 5))
    assert torch.equal(torch.get_rng_state(), before)


# ---- what is in a batch


def painted(counts: list[int], size: int = 24) -> Dataset:
    """Every image of one grey of its own, 3 · its number, so that no crop can hide which it is."""
    labels = np.repeat(np.arange(len(counts)), counts)
    greys = 3 * np.arange(len(labels), dtype=np.uint8)
    pixels = np.ones((len(labels), size, size, 3), dtype=np.uint8) * greys[:, None, None, None]
    return arrays(pixels, labels, pixels.copy(), labels)


def numbers(images: Tensor) -> list[int]:
    return (images.mean((1, 2, 3)) / 3).round().int().tolist()


@pytest.mark.parametrize("memory_bytes", [None, 0])
@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(10, [10, 10, 3]), (23, [23]), (50, [23]), (1, [1] * 23)]
)
def test_an_epoch_is_every_image_once(
    memory_bytes: int | None, batch_size: int, sizes: list[int]
) -> None:
    dataset = painted([10, 6, 7])
    source = loader(dataset, memory_bytes=memory_bytes)
    batches = list(source.train_batches(source.dataset.train, batch_size, generator()))
    assert [len(labels) for _, labels in batches] == sizes
    images, labels = joined(batches)
    assert sorted(numbers(images)) == list(range(23))
    assert labels.tolist() == [int(dataset.train.labels[n]) for n in numbers(images)]
    tests = list(source.test_batches(source.dataset.test, batch_size))
    assert [len(labels) for _, labels in tests] == sizes
    images, labels = joined(tests)
    assert numbers(images) == list(range(23))  # in order
    assert labels.tolist() == dataset.test.labels.tolist()


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_epochs_differ_and_a_seed_repeats_them(tmp_path: Path, memory_bytes: int | None) -> None:
    source = loader(from_arrays(tmp_path), memory_bytes=memory_bytes)
    train = source.dataset.train

    def two_epochs(seed: int) -> list[Batch]:
        one = generator(seed)
        return [joined(source.train_batches(train, 5, one)) for _ in range(2)]

    (first, first_labels), (second, second_labels) = two_epochs(1)
    again = two_epochs(1)
    assert torch.equal(first, again[0][0])
    assert torch.equal(second, again[1][0])
    assert torch.equal(second_labels, again[1][1])
    assert not torch.equal(first_labels, second_labels)
    assert not torch.equal(first, second)
    assert not torch.equal(first, two_epochs(2)[0][0])


def test_an_epoch_is_drawn_when_it_is_asked_for() -> None:
    """Batches that are fetched late must not depend on what else the generator was used for."""
    source = loader(painted([10, 10]))
    one = generator()
    late = source.train_batches(source.dataset.train, 4, one)
    torch.rand(100, generator=one)
    expected = source.train_batches(source.dataset.train, 4, generator())
    assert torch.equal(joined(late)[0], joined(expected)[0])


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_the_generator_gives_the_order_first_and_then_the_crops(memory_bytes: int | None) -> None:
    """The stream of numbers is a contract: old runs must resume under new code."""
    ramp = np.arange(0, 240, 10, dtype=np.uint8)  # a column's grey tells where it was
    pixels = np.tile(ramp[None, None, :, None], (17, 24, 1, 3))
    pixels[:, :, 0] = 3 * np.arange(17, dtype=np.uint8)[:, None, None]
    dataset = arrays(pixels, np.arange(17) % 2, pixels.copy(), np.arange(17) % 2)
    source = loader(dataset, memory_bytes=memory_bytes)
    images, labels = joined(source.train_batches(source.dataset.train, 6, generator()))
    one = generator()
    shuffle = torch.randperm(17, generator=one)
    assert labels.tolist() == dataset.train.labels[shuffle].tolist()
    boxes, flips = random_crops(torch.full((17, 2), 24), dataset.augmentation, one)
    assert 0 < flips.sum() < 17
    cut = 0
    for image, box, flip in zip(images, boxes.int().tolist(), flips.tolist(), strict=True):
        _, left, _, width = box
        if left == 0:
            continue  # the first column is another grey
        cut += 1
        columns = image.mean((0, 1))
        middle = 10 * (left + (width - 1) / 2)
        assert columns.mean().item() == pytest.approx(middle, abs=1)
        assert (columns[0] > columns[-1]).item() is (flip and width > 1)
    assert cut > 5


@pytest.mark.parametrize("memory_bytes", [None, 0])
@pytest.mark.parametrize("name", ["none", "half", "imagenet"])
def test_normalisation(name: str, memory_bytes: int | None) -> None:
    mean, std = NORMALISATIONS[name]
    pixels = np.empty((4, 8, 8, 3), dtype=np.uint8)
    pixels[:] = colour = np.array([10, 128, 250], dtype=np.uint8)
    dataset = arrays(pixels, [0, 0, 1, 1], pixels.copy(), [0, 0, 1, 1])
    source = loader(dataset, Preprocessing(8, mean, std, resize=9), memory_bytes=memory_bytes)
    expected = torch.tensor((colour / 255 - mean) / std, dtype=torch.float32)
    for batches in (
        source.train_batches(source.dataset.train, 4, generator()),
        source.test_batches(source.dataset.test, 4),
    ):
        images, _ = joined(batches)
        torch.testing.assert_close(images, expected[None, :, None, None].expand(4, 3, 8, 8))


def test_parts_of_the_data_set_are_served_with_their_own_labels() -> None:
    source = loader(painted([5, 5, 5]))
    part = source.dataset.train.take(np.array([14, 2, 7])).relabel(np.array([7, 8, 9]))
    images, labels = joined(source.test_batches(part, 2))
    assert numbers(images) == [14, 2, 7]
    assert labels.tolist() == [9, 7, 8]


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_of_no_images_there_are_no_batches(memory_bytes: int | None) -> None:
    """A task whose classes have no test images."""
    source = loader(painted([5, 5]), memory_bytes=memory_bytes)
    nothing = source.dataset.test.take(np.array([], dtype=np.int64))
    assert list(source.test_batches(nothing, 4)) == []
    assert list(source.train_batches(nothing, 4, generator())) == []


def test_a_source_of_training_and_test_images_is_opened_once() -> None:
    shared = painted([2, 2]).train
    source = loader(Dataset("d", ["0", "1"], shared, shared), memory_bytes=shared.items.nbytes)
    assert not source.streams
    assert len(source.dataset.test) == 4


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_files_without_a_test_image(tmp_path: Path, memory_bytes: int | None) -> None:
    dataset = folder(image_files(tmp_path) / "train", test_fraction=0)
    source = loader(dataset, memory_bytes=memory_bytes)
    assert len(source.dataset.train) == 18
    assert list(source.test_batches(source.dataset.test, 4)) == []


# ---- what cannot be read


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_unreadable_files_are_skipped_and_named(tmp_path: Path, memory_bytes: int | None) -> None:
    image_files(tmp_path)
    broken = tmp_path / "train" / "b" / "000.png"  # sorts before the good ones
    broken.write_text("this is no image")
    empty = tmp_path / "test" / "c" / "zzz.jpg"
    empty.touch()
    whole = sorted((tmp_path / "train" / "a").iterdir())[3]
    whole.write_bytes(whole.read_bytes()[:100])  # the end is missing
    heard = Heard()
    source = loader(folder(tmp_path), memory_bytes=memory_bytes, progress=heard)
    assert len(source.skipped) == 3
    for path in (broken, empty, whole):
        assert sum(str(path) in line for line in source.skipped) == 1
    assert f"{empty}: the file is empty" in source.skipped
    assert heard.lines == [f"skipped {line}" for line in source.skipped]
    assert len(source.dataset.train) == 17  # of 18 good ones, one was cut short
    assert len(source.dataset.test) == 9
    images, labels = joined(source.train_batches(source.dataset.train, 5, generator()))
    assert len(images) == 17
    assert torch.bincount(labels).tolist() == [5, 6, 6]
    assert images.isfinite().all()
    # and those that remain are the right ones
    clean = folder(tmp_path)
    skipped = {str(broken), str(empty), str(whole)}
    left = [str(clean.train.items[int(i)]) for i in source.dataset.train.index]
    expected = [str(clean.train.items[int(i)]) for i in clean.train.index]
    assert left == [path for path in expected if path not in skipped]


def test_nothing_is_said_when_all_is_well(tmp_path: Path) -> None:
    heard = Heard()
    source = loader(from_files(tmp_path), progress=heard)
    assert source.skipped == heard.lines == []


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_a_class_without_a_readable_image_is_named(
    tmp_path: Path, memory_bytes: int | None
) -> None:
    image_files(tmp_path)
    for path in (tmp_path / "train" / "b").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(DafuseError, match=r"1 class\(es\) have no readable training image: b;"):
        loader(folder(tmp_path), memory_bytes=memory_bytes)


def test_all_classes_without_a_readable_image_are_named(tmp_path: Path) -> None:
    image_files(tmp_path)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"")
    heard = Heard()
    with pytest.raises(DafuseError, match="no readable training image: a, b, c"):
        loader(folder(tmp_path), progress=heard)
    assert len(heard.lines) == 27


def test_an_unreadable_test_class_is_no_error(tmp_path: Path) -> None:
    image_files(tmp_path)
    for path in (tmp_path / "test" / "b").iterdir():
        path.write_bytes(b"no image")
    source = loader(folder(tmp_path))
    assert sorted(set(source.dataset.test.labels.tolist())) == [0, 2]


def test_large_images_come_a_few_at_a_time_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = loader(from_arrays(tmp_path))
    images = source.dataset.train
    whole = [x for x, _ in source.test_batches(images, 5)]
    monkeypatch.setattr("dafuse.data.batches.PIXELS_AT_ONCE", 1)
    one_by_one = [x for x, _ in source.test_batches(images, 5)]
    assert [len(x) for x in whole] == [len(x) for x in one_by_one]
    for a, b in zip(whole, one_by_one, strict=True):
        assert torch.allclose(a, b, atol=1e-4)

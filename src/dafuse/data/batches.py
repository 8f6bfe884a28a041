"""Batches already on the device: augmented for training, plain for statistics and testing.

A data set that fits is decoded once and kept there as uint8; one that does not fit streams from
worker processes. Both draw the same crops and give the same images up to interpolation error.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dafuse.data.dataset import Dataset, ImageSet, Items
from dafuse.data.decoding import decode_all
from dafuse.data.images import pixels_of
from dafuse.data.preprocessing import Interpolation, Preprocessing
from dafuse.data.transforms import centre_crops, crop_and_resize, random_crops
from dafuse.errors import DafuseError
from dafuse.progress import Progress

PIXELS_AT_ONCE = 2**24  # padded pixels that are cropped together: about 700 MB of memory
Batch = tuple[Tensor, Tensor]  # images [B, 3, S, S] normalised, labels [B], both on the device


class Loader:
    """Batches of any part of a data set, which is read once; unreadable images are skipped."""

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: Preprocessing,
        device: torch.device,
        progress: Progress | None = None,
        memory_bytes: int | None = None,  # for decoded pixels; default: half of what is free
        workers: int | None = None,  # decoding threads, streaming processes
    ) -> None:
        self.preprocessing = preprocessing
        self.device = device
        self.workers = workers if workers is not None else (os.cpu_count() or 1)
        self._cut_together = 512 if device.type == "cuda" else 1  # images: one launch for all
        self.skipped: list[str] = []
        self._sources: dict[int, _Source] = {}  # by the identity of the items
        budget = free_bytes(device) // 2 if memory_bytes is None else memory_bytes
        for images in (dataset.train, dataset.test):
            if id(images.items) not in self._sources:
                budget -= self._open(images.items, budget, progress or Progress())
        self.dataset = replace(
            dataset, train=self._readable(dataset.train), test=self._readable(dataset.test)
        )
        _require_images(self.dataset, self.skipped)
        self._mean = 255 * torch.tensor(preprocessing.mean, device=device)[:, None, None]
        self._std = 255 * torch.tensor(preprocessing.std, device=device)[:, None, None]

    @property
    def streams(self) -> bool:
        """Tell whether some of the data does not fit into memory and is read again each time."""
        return any(source.store is None for source in self._sources.values())

    def pixel_bytes(self, images: ImageSet) -> int:
        """Return the bytes that these images take, decoded."""
        return 3 * int(self._sources[id(images.items)].sizes_N2[images.index].prod(1).sum())

    def train_batches(
        self,
        images: ImageSet,
        batch_size: int,
        generator: torch.Generator,
        share: Callable[[int], slice] | None = None,
    ) -> Iterator[Batch]:
        """Yield one epoch: shuffled, cropped and flipped. The generator draws all of it here.

        With a ``share``, yield that part of each batch, if there is any, with the same crops.
        """
        shuffle = torch.randperm(len(images), generator=generator)
        index = torch.from_numpy(images.index)[shuffle]
        labels = torch.from_numpy(images.labels)[shuffle]
        sizes = self._sources[id(images.items)].sizes_N2[index]
        boxes, flips = random_crops(sizes, self.dataset.augmentation, generator)
        if share is not None:
            every = torch.arange(len(index)).split(batch_size)
            parts = [batch[share(len(batch))] for batch in every]
            batch_size = max([1, *(len(part) for part in parts)])
            own = torch.cat(parts)
            index, labels, boxes, flips = index[own], labels[own], boxes[own], flips[own]
        return self._batches(images.items, index, labels, boxes, flips, batch_size, training=True)

    def no_images(self) -> Batch:
        """Return a batch without images."""
        size = self.preprocessing.size
        images_B3SS = torch.zeros(0, 3, size, size, device=self.device)
        return images_B3SS, torch.zeros(0, dtype=torch.int64, device=self.device)

    def test_batches(self, images: ImageSet, batch_size: int) -> Iterator[Batch]:
        """Yield batches in order, under the test transform."""
        index, labels = torch.from_numpy(images.index), torch.from_numpy(images.labels)
        sizes = self._sources[id(images.items)].sizes_N2[index]
        boxes, flips = centre_crops(sizes, self.preprocessing)
        return self._batches(images.items, index, labels, boxes, flips, batch_size, training=False)

    def _batches(
        self,
        items: Items,
        index: Tensor,
        labels: Tensor,
        boxes: Tensor,
        flips: Tensor,
        batch_size: int,
        training: bool,
    ) -> Iterator[Batch]:
        kernel: Interpolation = "bilinear" if training else self.preprocessing.interpolation
        labels = labels.to(self.device)
        store = self._sources[id(items)].store
        if store is None:
            crops = _Crops(items, index, boxes, flips, self.preprocessing.size, kernel, training)
            # its own generator, as torch's global one is lent to dropout
            own = torch.Generator()
            stream: DataLoader[Tensor] = DataLoader(
                crops, batch_size, num_workers=self.workers, generator=own
            )
            # no images split into one empty part, but stream as none
            for part, pixels in zip(labels.split(batch_size)[: len(stream)], stream, strict=True):
                yield self._normalise(pixels.to(self.device).float()), part
            return
        boxes, flips = boxes.to(self.device), flips.to(self.device)
        size = self.preprocessing.size
        chunk = max(1, PIXELS_AT_ONCE // max(store.largest, 1))  # photographs come a few at a time
        together = batch_size * max(1, min(chunk, self._cut_together) // batch_size)
        for start in range(0, len(index), together):
            end = min(start + together, len(index))
            parts = [slice(i, min(i + chunk, end)) for i in range(start, end, chunk)]
            cuts = [
                crop_and_resize(*store.pick(index[p]), boxes[p], flips[p], size, kernel, training)
                for p in parts
            ]
            images = self._normalise(torch.cat(cuts))
            yield from zip(
                images.split(batch_size), labels[start:end].split(batch_size), strict=True
            )

    def _normalise(self, images_B3SS: Tensor) -> Tensor:
        return (images_B3SS - self._mean) / self._std

    def _open(self, items: Items, budget: int, progress: Progress) -> int:
        """Decode a source, keep its pixels if they fit, and return the bytes they take."""
        decoded = decode_all(items, self.workers, progress, budget)
        for i, why in sorted(decoded.unreadable.items()):
            self.skipped.append(" ".join(f"{items[i]}: {why}".split()))
            progress.say(f"skipped {self.skipped[-1]}")
        store = None if decoded.images is None else PixelStore(decoded.images, self.device)
        unreadable = np.array(list(decoded.unreadable), dtype=np.int64)
        self._sources[id(items)] = _Source(torch.from_numpy(decoded.sizes), unreadable, store)
        return 0 if store is None else store.pixels.numel()

    def _readable(self, images: ImageSet) -> ImageSet:
        unreadable = self._sources[id(images.items)].unreadable
        return images.take(np.isin(images.index, unreadable, invert=True))


class PixelStore:
    """All images of a source back to back in one buffer; a batch is gathered and padded at once."""

    def __init__(self, images: Sequence[np.ndarray] | np.ndarray, device: torch.device) -> None:
        self.sizes_N2 = torch.tensor([image.shape[:2] for image in images]).reshape(-1, 2)
        self.uniform = bool((self.sizes_N2 == self.sizes_N2[:1]).all())
        self.on_device_N2 = self.sizes_N2.to(device)
        if self.uniform:
            stacked = np.asarray(images, dtype=np.uint8)  # may be none at all: no test images
            self.pixels = torch.from_numpy(np.ascontiguousarray(stacked)).to(device)
            return
        flat = np.concatenate([image.reshape(-1, 3) for image in images])
        self.pixels = torch.from_numpy(flat).to(device)
        areas = self.sizes_N2.prod(1)
        self.starts_N = (areas.cumsum(0) - areas).to(device)

    @property
    def largest(self) -> int:
        """Pixels of an image padded to the largest height and width there are."""
        return int(self.sizes_N2.amax(0).prod()) if len(self.sizes_N2) else 0

    def pick(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [B, 3, H, W] uint8 padded to the batch's largest image, and sizes [B, 2].

        ``index`` is on the CPU, so that the padding is known without waiting for the device.
        """
        device_index = index_B.to(self.pixels.device, non_blocking=True)
        sizes_B2 = self.on_device_N2[device_index]
        if self.uniform:
            return self.pixels[device_index].permute(0, 3, 1, 2), sizes_B2
        height, width = self.sizes_N2[index_B].amax(0).tolist()
        h_B11, w_B11 = sizes_B2[:, 0, None, None], sizes_B2[:, 1, None, None]
        y = torch.arange(height, device=h_B11.device)[None, :, None]
        x = torch.arange(width, device=h_B11.device)[None, None, :]
        start = self.starts_N[device_index][:, None, None]
        where_BHW = start + torch.minimum(y, h_B11 - 1) * w_B11 + torch.minimum(x, w_B11 - 1)
        return self.pixels[where_BHW].permute(0, 3, 1, 2), sizes_B2


@dataclass
class _Source:
    sizes_N2: Tensor
    unreadable: np.ndarray
    store: PixelStore | None  # None: it did not fit


class _Crops(TorchDataset[Tensor]):
    """The streaming path: each image is read, cropped and resized by Pillow in a worker."""

    def __init__(
        self,
        items: Items,
        index: Tensor,
        boxes: Tensor,
        flips: Tensor,
        size: int,
        kernel: Interpolation,
        confined: bool,
    ) -> None:
        self.items, self.index, self.boxes, self.flips = items, index, boxes, flips
        self.size, self.kernel, self.confined = size, kernel, confined

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> Tensor:
        item = self.items[int(self.index[row])]
        image = Image.fromarray(pixels_of(item))
        top, left, height, width = self.boxes[row].tolist()
        box = left, top, left + width, top + height
        square, kernel = (self.size, self.size), Image.Resampling[self.kernel.upper()]
        if self.confined:
            image = image.crop(tuple(round(edge) for edge in box)).resize(square, kernel)
        else:
            image = image.resize(square, kernel, box=box)
        if self.flips[row]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _require_images(dataset: Dataset, skipped: list[str]) -> None:
    counts = np.bincount(dataset.train.labels, minlength=len(dataset.classes))
    empty = [name for name, count in zip(dataset.classes, counts, strict=True) if count == 0]
    if empty:
        others = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        why = f" (skipped {skipped[0]}{others})" if skipped else ""
        raise DafuseError(
            f"{len(empty)} class(es) have no readable training image: {', '.join(empty[:10])}; "
            f"add images or remove the class{why}"
        )


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the machine, through which all images go, or less on the device."""
    from psutil import virtual_memory

    free: int = virtual_memory().available
    return min(free, torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free

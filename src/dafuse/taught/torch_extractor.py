"""Networks by torch: features of images by any timm network, and images for methods that train."""

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths, FeaturePart
from dafuse.backbones.extractor import FEATURES, Extractor, available_processors
from dafuse.backbones.folded import fold
from dafuse.backbones.graph import quiet, traced
from dafuse.backbones.network import Network
from dafuse.backbones.vit import ViT
from dafuse.data.batches import Loader
from dafuse.data.dataset import Augmentation, Dataset, ImageSet
from dafuse.data.preprocessing import Preprocessing
from dafuse.data.splits import split_per_class
from dafuse.engine.devices import launch
from dafuse.engine.ranks import Ranks
from dafuse.taught.contract import Lesson

if TYPE_CHECKING:
    from onnx import ModelProto

HELD_OUT = 0.1  # share of each class's images
HOLDS_OUT = 5  # images that a class needs before some are held out


class TorchExtractor(Extractor):
    """A torch network with the interface of an `Extractor`, also with a module attached."""

    def __init__(
        self,
        network: Network,
        device: str = "auto",
        threads: int | None = None,
        devices: int = 1,  # that share out lessons
    ) -> None:
        self.fabric = launch(device, "fp32", False, devices)
        self.network = network.to(self.fabric.device)
        self.threads, self.device = threads or available_processors(), device
        if threads:
            torch.set_num_threads(threads)
        self.tag, self.sha256 = network.tag, network.sha256
        self.preprocessing, self.offers = network.preprocessing, network.offers
        self.width, self.depth = network.width, network.depth

    @property
    def file(self) -> None:
        return None

    @property
    def stages(self) -> list[tuple[int, int]]:
        return self.network.stages

    def parts(self, depths: Depths) -> list[FeaturePart]:
        return self.network.parts(depths)

    def graph(
        self,
        depths: Depths,
        attached: Adapter | None = None,
        lift: Callable[[Tensor], Tensor] | None = None,
    ) -> "ModelProto":
        """Return the graph as `Extractor.graph` does, with an adapter or a map of the features."""
        network = deepcopy(self.network).cpu()
        if attached is not None and isinstance(network, ViT):
            network, attached = fold(network, attached), None
        with quiet(), torch.no_grad():
            reading = _Reading(network, attached, depths, lift)
            return traced(reading.eval(), self.pixels, [FEATURES])

    @torch.inference_mode()
    def encode(
        self,
        squares_B3SS: np.ndarray,
        depths: Depths = "moments",
        attached: Attachment | None = None,
    ) -> np.ndarray:
        pixels_B3SS = torch.from_numpy(squares_B3SS).to(self.fabric.device)
        images_B3SS = normalised(pixels_B3SS, self.preprocessing)
        feats_BF = self.network(images_B3SS, attached, depths)
        return feats_BF.float().cpu().numpy()


class _Reading(nn.Module):
    """A map from float pixels, 0 to 255, to the features of one kind of depths, maybe lifted."""

    def __init__(
        self,
        network: Network,
        attached: Adapter | None,
        depths: Depths,
        lift: Callable[[Tensor], Tensor] | None,
    ) -> None:
        super().__init__()
        self.network, self.attached, self.depths, self.lift = network, attached, depths, lift

    def forward(self, pixels_B3SS: Tensor) -> dict[str, Tensor]:
        images_B3SS = normalised(pixels_B3SS, self.network.preprocessing)
        feats_BF = self.network(images_B3SS, self.attached, self.depths)
        return {FEATURES: feats_BF if self.lift is None else self.lift(feats_BF)}


def normalised(pixels_B3SS: Tensor, looks: Preprocessing) -> Tensor:
    """Normalise pixels from 0 to 255 as the network expects them."""
    mean, std = (
        255 * torch.tensor(part, device=pixels_B3SS.device)[:, None, None]
        for part in (looks.mean, looks.std)
    )
    return (pixels_B3SS - mean) / std


def load_images(lesson: Lesson, extractor: TorchExtractor, flip: bool) -> tuple[Loader, ImageSet]:
    """Return a loader of batches, and the lesson's images with the numbers of their classes.

    Known classes need not be in the lesson.
    """
    present_K, labels_N = np.unique(lesson.labels_N, return_inverse=True)
    images = ImageSet(lesson.images, labels_N)
    nothing = images.take(np.zeros(0, dtype=np.int64))
    augmentation = Augmentation() if flip else Augmentation(flip=0.0)
    names = [lesson.names[number] for number in present_K]
    dataset = Dataset("lesson", names, images, nothing, augmentation)
    ranks = Ranks(extractor.fabric)
    limits = ranks.memory_for_images(None), ranks.workers(None)
    device, progress = extractor.fabric.device, lesson.progress
    loader = Loader(dataset, extractor.preprocessing, device, progress, *limits)
    return loader, images.relabel(present_K)


def held_out(images: ImageSet, names: list[str], share: float, seed: int) -> np.ndarray:
    """Return a mask: this share of each class of 5 images or more, at least one image each."""
    drawn_N = split_per_class(images.labels, names, share, seed)
    return drawn_N & (np.bincount(images.labels)[images.labels] >= HOLDS_OUT)

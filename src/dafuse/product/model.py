"""What predicts: the frozen network, the global adapter, a row for each class. It never changes."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.images import UnreadableImage
from dafuse.data.pictures import Picture, in_parts
from dafuse.heads.cosine import cosine_logits
from dafuse.methods.packing import unpacked
from dafuse.product.prediction import Prediction, predicted
from dafuse.product.state import State
from dafuse.product.unknown import familiarity
from dafuse.product.version import Version
from dafuse.vit.adapter import Adapter
from dafuse.vit.backbone import ViT

AT_ONCE = 256  # images decoded together: memory stays the same however many there are
BATCH = 64


class Model:
    """One version of a model, ready to predict. Any number of threads may ask it at once."""

    def __init__(self, vit: ViT, device: torch.device, version: Version, state: State) -> None:
        self.vit, self.device, self.version = vit, device, version
        settings = version.settings
        adapter = Adapter(vit.depth, vit.width, settings["adapter_rank"], settings["adapter_scale"])
        adapter.set(unpacked(state, "modules/global")).requires_grad_(False)
        self.adapter = adapter.to(device).eval()
        self.rows_CD = state["classifier/rows"].to(device)
        self.names = version.names
        if not len(self.rows_CD) == len(self.names) == len(set(self.names)) > 0:
            raise ValueError("there is not one row for each class")
        self.sharpness = float(version.calibration.sharpness)
        self.threshold = float(version.calibration.threshold)
        if not 0 < self.sharpness < math.inf or math.isnan(self.threshold):
            raise ValueError("the calibration is no number")

    @torch.inference_mode()
    def features(self, pixels: Sequence[np.ndarray]) -> Tensor:
        """Features [N, D] of images uint8 [H, W, 3] of any sizes."""
        images = ImageSet(list(pixels), np.zeros(len(pixels), dtype=np.int64))
        dataset = Dataset("images", ["image"], images, images)
        loader = Loader(dataset, self.vit.preprocessing, self.device, memory_bytes=2**62)
        batches = loader.test_batches(images, BATCH)
        return torch.cat([self.vit(batch, self.adapter) for batch, _ in batches])

    def logits(self, feats_ND: Tensor) -> Tensor:
        """Scores [N, C], not calibrated."""
        return cosine_logits(feats_ND, self.rows_CD)

    def probabilities(self, logits_NC: Tensor) -> Tensor:
        """Calibrated; of one image or many."""
        return torch.softmax(self.sharpness * logits_NC, dim=-1)

    def each_logits(self, images: Sequence[Picture]) -> Iterator[Tensor | UnreadableImage]:
        """Logits [C] of each image on the CPU, or why it could not be read, as they come."""
        return in_parts(images, AT_ONCE, lambda pixels: self.logits(self.features(pixels)).cpu())

    def answers(
        self, images: Sequence[Picture], top: int = 1, threshold: float | None = None
    ) -> Iterator[Prediction | UnreadableImage]:
        """What each image is taken for, or why it could not be read, as they come."""
        for logits in self.each_logits(images):
            if isinstance(logits, UnreadableImage):
                yield logits
            else:
                yield self.prediction(logits, top, threshold)

    def prediction(
        self, logits_C: Tensor, top: int = 1, threshold: float | None = None
    ) -> Prediction:
        """``threshold``: another than the model's own."""
        threshold = self.threshold if threshold is None else threshold
        probabilities_C = self.probabilities(logits_C).numpy()
        return predicted(self.names, probabilities_C, float(familiarity(logits_C)), threshold, top)

"""Whether an exported file computes what its model does: both are asked about the same pictures."""

import io
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.product.card import INPUT
from dafuse.product.model import Model

GRIDS = (1, 2, 3, 5, 8, 13, 21, 34)  # of coloured squares: a picture of each, from plain to busy


@dataclass(frozen=True)
class Difference:
    """Between the probabilities of a file and those of its model."""

    largest: float
    mean: float


def difference(data: bytes, suffix: str, model: Model) -> Difference:
    """Of the bytes of a whole file of this suffix, which are run as their users will run them."""
    pixels_N3SS = pictures(model.vit.preprocessing.size)
    run = _run_onnx if suffix == ".onnx" else _run_pt2
    apart_NC = np.abs(run(data, pixels_N3SS) - _expected(model, pixels_N3SS))
    return Difference(float(apart_NC.max()), float(apart_NC.mean()))


def pictures(size: int) -> Tensor:
    """Float pixels, 0 to 255: grids of random colours, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    grids = [torch.rand(1, 3, grid, grid, generator=generator) for grid in GRIDS]
    return torch.cat([F.interpolate(255 * grid, size=(size, size)) for grid in grids])


def _expected(model: Model, pixels_N3SS: Tensor) -> np.ndarray:
    """[N, C] of the model as it predicts, its adapter beside the network.

    On the CPU, for other devices may round more.
    """
    at_home = model.device.type == "cpu"
    vit = model.vit if at_home else deepcopy(model.vit).cpu()
    adapter = model.adapter if at_home else deepcopy(model.adapter).cpu()
    looks = model.vit.preprocessing
    mean, std = (255 * torch.tensor(part)[:, None, None] for part in (looks.mean, looks.std))
    with torch.inference_mode():
        feats_ND = vit((pixels_N3SS - mean) / std, adapter)
        logits_NC = model.logits(feats_ND.to(model.device))
        return model.probabilities(logits_NC).cpu().numpy()


def _run_onnx(data: bytes, pixels_N3SS: Tensor) -> np.ndarray:
    from onnxruntime import InferenceSession

    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {INPUT: pixels_N3SS.numpy()})[0]


def _run_pt2(data: bytes, pixels_N3SS: Tensor) -> np.ndarray:
    module = torch.export.load(io.BytesIO(data)).module()
    return module(pixels_N3SS)["probabilities"].detach().numpy()

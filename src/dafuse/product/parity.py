"""Whether an exported file computes what its model does: both are asked about the same pictures."""

import io
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dafuse.product.card import OUTPUTS
from dafuse.product.model import Model
from dafuse.product.unknown import familiarity
from dafuse.vit.card import INPUT

GRIDS = (1, 2, 3, 5, 8, 13, 21, 34)  # of coloured squares: a picture of each, from plain to busy


Scores = tuple[np.ndarray, np.ndarray]  # probabilities [N, C], familiarities [N]


@dataclass(frozen=True)
class Difference:
    """Between the answers of a file and those of its model."""

    largest: float  # of probabilities
    mean: float
    familiarity: float  # the largest
    pictures: int
    same: int  # of the pictures: the same class, or unknown by both


def difference(data: bytes, suffix: str, model: Model) -> Difference:
    """Of the bytes of a whole file of this suffix, which are run as their users will run them."""
    pixels_N3SS = pictures(model.vit.preprocessing.size)
    run = _run_onnx if suffix == ".onnx" else _run_pt2
    found, expected = run(data, pixels_N3SS), _expected(model, pixels_N3SS)
    apart_NC, apart_N = (np.abs(a - b) for a, b in zip(found, expected, strict=True))
    answers = [_answers(scores, model.threshold) for scores in (found, expected)]
    return Difference(
        float(apart_NC.max()),
        float(apart_NC.mean()),
        float(apart_N.max()),
        len(pixels_N3SS),
        int((answers[0] == answers[1]).sum()),
    )


def _answers(scores: Scores, threshold: float) -> np.ndarray:
    """The class of each picture, or -1: unknown."""
    probabilities_NC, familiarities_N = scores
    return np.where(familiarities_N < threshold, -1, probabilities_NC.argmax(1))


def pictures(size: int) -> Tensor:
    """Float pixels, 0 to 255: grids of random colours, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    grids = [torch.rand(1, 3, grid, grid, generator=generator) for grid in GRIDS]
    return torch.cat([F.interpolate(255 * grid, size=(size, size)) for grid in grids])


def _expected(model: Model, pixels_N3SS: Tensor) -> Scores:
    """Of the model as it predicts, its adapter beside the network.

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
        both = model.probabilities(logits_NC), familiarity(logits_NC)
    return both[0].cpu().numpy(), both[1].cpu().numpy()


def _run_onnx(data: bytes, pixels_N3SS: Tensor) -> Scores:
    from onnxruntime import InferenceSession

    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    probabilities_NC, familiarities_N = session.run(OUTPUTS[1:], {INPUT: pixels_N3SS.numpy()})
    return probabilities_NC, familiarities_N


def _run_pt2(data: bytes, pixels_N3SS: Tensor) -> Scores:
    found = torch.export.load(io.BytesIO(data)).module()(pixels_N3SS)
    probabilities_NC, familiarities_N = (found[name].detach().numpy() for name in OUTPUTS[1:])
    return probabilities_NC, familiarities_N

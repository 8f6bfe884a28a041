"""Export of a torch network to one .onnx file for the light core, compared with it first."""

from pathlib import Path

import numpy as np
import torch

from dafuse.backbones.card import INPUT, require_fits
from dafuse.backbones.depths import DEPTHS
from dafuse.backbones.extractor import session_of
from dafuse.backbones.graph import AllDepths, graph
from dafuse.backbones.network import Network
from dafuse.data.pictures import made_up
from dafuse.errors import DafuseError
from dafuse.files import require_writable, write_atomically

TOLERANCE = 1e-3  # max difference of features, whose size is about 1; 1e-5 is usual


def export_backbone(network: Network, file: Path) -> float:
    """Write the file, complete and with the network's features, or not at all.

    Return the largest difference between both features, on made-up images.
    """
    require_exportable(network, file)
    content = graph(network)
    difference = _largest_difference(content, network)
    if not difference <= TOLERANCE:  # or is not a number
        raise DafuseError(
            f"the exported {network.tag} gives other features than the network (they differ "
            f"by up to {difference:.2g}): nothing was written"
        )
    write_atomically(file, content)
    return difference


def require_exportable(network: Network, file: Path) -> None:
    """Refuse what cannot be exported, before computing anything."""
    if file.suffix.lower() != ".onnx":
        raise DafuseError(f"the file of an exported network ends in .onnx, which {file} does not")
    require_writable(file)
    size = sum(p.numel() * p.element_size() for p in network.state_dict().values())
    require_fits(network.tag, size, ": use it by torch")


def _largest_difference(content: bytes, network: Network) -> float:
    """Return the max difference between onnxruntime's and torch's features, over a typical one."""
    pixels_N3SS = made_up(network.preprocessing.size)
    found = session_of(content).run(list(DEPTHS), {INPUT: pixels_N3SS})
    with torch.no_grad():
        expected = AllDepths(network).eval()(torch.from_numpy(pixels_N3SS))
    differences = []
    for depths, ours_NF in zip(DEPTHS, found, strict=True):
        theirs_NF = expected[depths].numpy()
        typical = max(1.0, float(np.sqrt(np.mean(theirs_NF**2))))
        differences.append(float(np.abs(ours_NF - theirs_NF).max()) / typical)
    return float(np.max(differences))

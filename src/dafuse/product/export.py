"""A model as one file that predicts elsewhere: .onnx (float32 or int8) or torch.export's .pt2.

The file takes pixels and gives probabilities; normalisation, adapter, classifier and calibration
are inside. Only reading images and cutting out the square stay outside: `product.runtime` does it
without torch, and the file's properties (`product.card`) say how.
"""

import io
import json
import math
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from dafuse import __version__
from dafuse.errors import DafuseError
from dafuse.files import write_atomically
from dafuse.heads.cosine import cosine_logits
from dafuse.product.card import OUTPUTS, Card
from dafuse.product.model import Model
from dafuse.product.parity import Difference, difference
from dafuse.product.unknown import familiarity
from dafuse.vit.folded import fold
from dafuse.vit.graph import example, quiet, traced

SUFFIXES = (".onnx", ".pt2")
LARGEST = 2_000_000_000  # bytes of weights; a protobuf ends at 2 GiB
TOLERANCE = 1e-4  # of probabilities, between the model and a file of float32 weights
OF_FAMILIARITY = 10  # times that: it is of the size of logits, not of probabilities


@dataclass(frozen=True)
class Exported:
    card: Card  # what the file says about itself
    difference: Difference  # from the model, on pictures made for that


def export(model: Model, file: str | Path, int8: bool = False) -> Exported:
    """Write the file, whole and computing what the model does, or not at all.

    Args:
        model: what predicts
        file: its suffix decides: .onnx, or .pt2 for torch.export.load
        int8: weights of one byte instead of four (.onnx only): smaller, faster, less exact
    """
    path = Path(file).expanduser()
    require_exportable(path, int8)
    card = _card(model, int8)
    network = Network(model).eval()
    make = _onnx if path.suffix == ".onnx" else _pt2
    with quiet(), torch.no_grad():
        data = make(network, card)
        found = difference(data, path.suffix, model)
        _require_same(found, card, TOLERANCE)
        if int8:
            data = _quantised(data, card)
            found = difference(data, path.suffix, model)
            _require_same(found, card, math.inf)
    write_atomically(path, data)
    return Exported(card, found)


def require_exportable(path: Path, int8: bool) -> None:
    """One line that says why this cannot be, before anything long is begun."""
    if path.suffix not in SUFFIXES:
        raise DafuseError(f"the file must end in {' or '.join(SUFFIXES)}, not {path.name!r}")
    if int8 and path.suffix != ".onnx":
        raise DafuseError("int8 is for .onnx files only")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise DafuseError(f"cannot write {path}: it is a folder, or its folder is not there")
    needed = ("onnx", "onnxscript", "onnxruntime") if path.suffix == ".onnx" else ()
    if missing := [name for name in needed if find_spec(name) is None]:
        raise DafuseError(f"{', '.join(missing)} is missing: pip install 'dafuse[onnx]'")


class Network(nn.Module):
    """All of a model but the reading of images, as one module without branches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vit = fold(model.vit, model.adapter).cpu()
        looks = model.vit.preprocessing
        self.mean = nn.Buffer(255 * torch.tensor(looks.mean)[:, None, None])
        self.std = nn.Buffer(255 * torch.tensor(looks.std)[:, None, None])
        self.rows_CD = nn.Buffer(model.rows_CD.cpu())
        self.sharpness = model.sharpness

    def forward(self, pixels_N3SS: Tensor) -> dict[str, Tensor]:
        """Of float pixels, 0 to 255."""
        feats_ND = self.vit((pixels_N3SS - self.mean) / self.std)
        logits_NC = cosine_logits(feats_ND, self.rows_CD)
        probabilities_NC = torch.softmax(self.sharpness * logits_NC, dim=1)
        found = (logits_NC, probabilities_NC, familiarity(logits_NC))
        return dict(zip(OUTPUTS, found, strict=True))


def _card(model: Model, int8: bool) -> Card:
    version = model.version
    return Card(
        classes=model.names,
        preprocessing=model.vit.preprocessing,
        temperature=1 / model.sharpness,
        threshold=model.threshold,
        backbone=version.backbone.tag,
        backbone_sha256=version.backbone.sha256,
        model_version=version.number,
        weights="int8" if int8 else "float32",
        made_by=__version__,
    )


def _pt2(network: Network, card: Card) -> bytes:
    images, shapes = example(card.preprocessing.size)
    program = torch.export.export(network, images, dynamic_shapes=shapes)
    for node in program.graph.nodes:  # which line of whose source file made it
        node.meta.pop("stack_trace", None)
    buffer = io.BytesIO()
    text = json.dumps(card.properties(), ensure_ascii=False, indent=1)
    torch.export.save(program, buffer, extra_files={"dafuse.json": text})
    return buffer.getvalue()


def _onnx(network: Network, card: Card) -> bytes:
    import onnx

    bytes_ = sum(tensor.nbytes for tensor in network.state_dict().values())
    if bytes_ > LARGEST:
        raise DafuseError(
            f"{card.backbone} has {bytes_ / 1e9:.1f} GB of weights, an .onnx file holds at most "
            f"{LARGEST / 1e9:.1f} GB: export it to a .pt2 file"
        )
    proto = traced(network, card.preprocessing.size, OUTPUTS)
    onnx.helper.set_model_props(proto, card.properties())
    return proto.SerializeToString()


def _require_same(found: Difference, card: Card, allowed: float) -> None:
    """Refuse what does not compute what the model does."""
    if not max(found.largest, found.familiarity / OF_FAMILIARITY) < allowed:  # or is no number
        raise DafuseError(
            f"what was exported of {card.backbone} gives other answers than the model "
            f"(probabilities differ by up to {found.largest:.2g}): nothing was written"
        )


def _quantised(data: bytes, card: Card) -> bytes:
    """Weights of the network's products as int8, a scale for each column; the classifier stays."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(
            onnx.load_from_string(data),
            file,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        proto = onnx.load(file)
    onnx.helper.set_model_props(proto, card.properties())
    return proto.SerializeToString()

"""A frozen network as an ONNX graph that `backbones.extractor` runs without torch, and its export.

python -m dafuse.backbones.graph   # writes the graphs of the embedded networks again

The graph takes pixels and has an output for each kind of depths. Its weights are inside the file,
or it points to the bytes of a safetensors file in the same folder: so the package has one copy of
an embedded network for torch and onnxruntime. onnxruntime folds casts from float16 and transposes
when it opens the file. Needs the extra `torch`.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dafuse import __version__
from dafuse.backbones.card import INPUT, BackboneCard, require_fits, sealed_onnx
from dafuse.backbones.depths import DEPTHS
from dafuse.backbones.extractor import embedded_graph, made_up, session_of
from dafuse.backbones.load import load_backbone
from dafuse.backbones.network import Network
from dafuse.backbones.registry import COMPACT, COMPACT_V1
from dafuse.errors import DafuseError
from dafuse.files import require_writable, write_atomically

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

OPSET = 20  # the first with GELU as one node
SMALL = 4096  # bytes of a constant that may stay in the graph
TOLERANCE = 1e-3  # max difference of features, whose size is about 1; 1e-5 is usual


class AllDepths(nn.Module):
    """A map from float pixels, 0 to 255, to the features of each kind of depths, in one pass."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        looks = network.preprocessing
        self.mean = nn.Buffer(255 * torch.tensor(looks.mean)[:, None, None])
        self.std = nn.Buffer(255 * torch.tensor(looks.std)[:, None, None])

    def forward(self, pixels_B3SS: Tensor) -> dict[str, Tensor]:
        images_B3SS = (pixels_B3SS - self.mean) / self.std
        return self.network.at_depths(images_B3SS, None, DEPTHS)


def graph(network: Network, beside: Path | None = None) -> bytes:
    """Return the content of an .onnx file.

    Args:
        network: a network on the CPU
        beside: its safetensors file of float16 weights, to which the graph will point
    """
    import onnx

    card = BackboneCard(
        tag=network.tag,
        sha256=network.sha256,
        preprocessing=network.preprocessing,
        width=network.width,
        depth=network.depth,
        parts={depths: network.parts(depths) for depths in DEPTHS},
        made_by=__version__,
    )
    with quiet(), torch.no_grad():
        proto = traced(AllDepths(network).eval(), network.preprocessing.size, DEPTHS)
    if beside is not None:
        _point_into(proto.graph, beside)
    onnx.helper.set_model_props(proto, card.properties())
    return sealed_onnx(proto.SerializeToString(deterministic=True))


def write_embedded() -> None:
    """Write the graphs of the networks in the package."""
    for tag in (COMPACT, COMPACT_V1):
        file = embedded_graph(tag)
        write_atomically(file, graph(load_backbone(tag), file.with_suffix(".safetensors")))


def example(size: int) -> tuple[tuple[Tensor], tuple[dict[int, torch.export.Dim]]]:
    """Return two images (torch takes a batch of one to be always one) and the batch's axis."""
    return (torch.zeros(2, 3, size, size),), ({0: torch.export.Dim("batch", min=1)},)


def traced(network: nn.Module, size: int, outputs: Sequence[str]) -> "ModelProto":
    """Return the network as ONNX, for batches of any size."""
    images, shapes = example(size)
    exported = torch.onnx.export(
        network,
        images,
        dynamic_shapes=shapes,
        dynamo=True,
        opset_version=OPSET,
        input_names=[INPUT],
        output_names=list(outputs),
        verbose=False,
    )
    assert exported is not None  # only the old exporter returns None
    return _bare(exported.model_proto)


def _bare(proto: "ModelProto") -> "ModelProto":
    """Remove the exporter's own notes."""
    graph = proto.graph
    # shapes between nodes: those of folded constants are wrong, which stops the quantiser
    del graph.value_info[:]
    # the source line of each node
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    return proto


class _Stored(NamedTuple):
    """A tensor in a safetensors file."""

    name: str
    shape: list[int]
    offset: int  # from the beginning of the file
    length: int
    transposed: bool = False  # whether the graph has it transposed


def _point_into(graph: "GraphProto", file: Path) -> None:
    """Replace the graph's constants by tensors of the file, found by their values."""
    from onnx import numpy_helper

    stored = _stored_by_value(file)
    constants: dict[str, TensorProto] = {}
    casts: list[NodeProto] = []
    for constant in graph.initializer:
        tensor = stored.get(_value(numpy_helper.to_array(constant)))
        if tensor is not None:
            constants[tensor.name] = _external(tensor, file)
            casts += _as_float32(tensor, constant.name)
        elif constant.ByteSize() <= SMALL:
            constants[constant.name] = constant
        else:
            raise DafuseError(f"{file} does not have the values of {constant.name}")
    nodes = [*casts, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(constants.values())
    graph.node.extend(nodes)


def _stored_by_value(file: Path) -> dict[Any, _Stored]:
    """Return each tensor of the file, and each matrix's transpose, by its values as float32."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")  # the length of the JSON text that follows
    by_value: dict[Any, _Stored] = {}
    for name, about in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "F16":
            raise DafuseError(f"{file} must have float16 weights; {name} is {about['dtype']}")
        start, end = (begin + offset for offset in about["data_offsets"])
        values = np.frombuffer(data[start:end], "<f2").astype(np.float32).reshape(about["shape"])
        tensor = _Stored(name, about["shape"], start, end - start)
        by_value[_value(values)] = tensor
        if values.ndim == 2:
            by_value.setdefault(_value(values.T), tensor._replace(transposed=True))
    return by_value


def _value(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(values.dtype), values.shape, values.tobytes()


def _external(stored: _Stored, file: Path) -> "TensorProto":
    from onnx import TensorProto

    tensor = TensorProto(name=stored.name, dims=stored.shape, data_type=TensorProto.FLOAT16)
    tensor.data_location = TensorProto.EXTERNAL
    where = {"location": file.name, "offset": stored.offset, "length": stored.length}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _as_float32(stored: _Stored, name: str) -> "list[NodeProto]":
    """Return nodes that turn the stored tensor into the constant of this name."""
    from onnx import TensorProto, helper

    if not stored.transposed:
        return [helper.make_node("Cast", [stored.name], [name], to=TensorProto.FLOAT)]
    wide = f"{name}_as_stored"
    return [
        helper.make_node("Cast", [stored.name], [wide], to=TensorProto.FLOAT),
        helper.make_node("Transpose", [wide], [name], perm=[1, 0]),
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' messages to their own developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
    outputs = session_of(content).run(list(DEPTHS), {INPUT: pixels_N3SS})
    with torch.no_grad():
        expected = AllDepths(network).eval()(torch.from_numpy(pixels_N3SS))
    differences = []
    for depths, ours_NF in zip(DEPTHS, outputs, strict=True):
        theirs_NF = expected[depths].numpy()
        typical = max(1.0, float(np.sqrt(np.mean(theirs_NF**2))))
        differences.append(float(np.abs(ours_NF - theirs_NF).max()) / typical)
    return float(np.max(differences))


if __name__ == "__main__":
    write_embedded()

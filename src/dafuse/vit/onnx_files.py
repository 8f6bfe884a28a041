"""An ONNX graph that points into another file, read as one that holds its weights itself.

No torch here. Weights that are stored as float16 become float32, as quantisers want them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto


def read_whole(file: Path, output: str, name: str) -> "ModelProto":
    """The part of a graph that computes this output, which gets a new name."""
    import onnx
    from onnx.utils import Extractor as Part

    proto = onnx.load(file)
    _fold_constants(proto)
    (given,) = [value.name for value in proto.graph.input]
    part: ModelProto = Part(proto).extract_model([given], [output])
    for node in part.graph.node:
        for number, made in enumerate(node.output):
            if made == output:
                node.output[number] = name
        for number, taken in enumerate(node.input):
            if taken == output:
                node.input[number] = name
    part.graph.output[0].name = name
    return part


def _fold_constants(proto: "ModelProto") -> None:
    """Do casts and transposes of weights now; onnxruntime would do them when it opens the file."""
    from onnx import numpy_helper

    graph = proto.graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    nodes, used = [], set()
    for node in graph.node:
        if node.op_type in ("Cast", "Transpose") and node.input[0] in values:
            value = values[node.input[0]]
            cast = node.op_type == "Cast"
            values[node.output[0]] = value.astype(np.float32) if cast else value.T
        else:
            nodes.append(node)
            used.update(node.input)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(values[name], order="C"), name)
        for name in sorted(used & values.keys())
    )

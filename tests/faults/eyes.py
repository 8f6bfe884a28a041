"""Tiny networks as `dafuse backbone export` writes them, made without torch."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from safetensors.numpy import save

from dafuse.backbones.card import INPUT, BackboneCard, sealed_onnx
from dafuse.backbones.depths import DEPTHS, FeaturePart, levels_of_tokens, parts_of, width_of
from dafuse.data.preprocessing import Preprocessing

SIDE, LEVELS, WIDTH, HIDDEN = 32, 4, 8, 256


def write_eye(file: Path, beside: bool = False) -> Path:
    """A network of random weights, inside the file or beside it in a .safetensors file."""
    rng = np.random.default_rng(0)
    levels = levels_of_tokens(LEVELS, WIDTH)
    parts: dict[str, list[FeaturePart]] = {depths: parts_of(depths, levels) for depths in DEPTHS}
    weights = {"wide": rng.normal(size=(3 * 8 * 8, HIDDEN)).astype(np.float32) / 8}
    for depths, read in parts.items():
        weights[depths] = rng.normal(size=(HIDDEN, width_of(read))).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", [INPUT], ["pooled"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Div", ["flat", "white"], ["light"]),
        helper.make_node("MatMul", ["light", "wide"], ["stretched"]),
        helper.make_node("Tanh", ["stretched"], ["hidden"]),
        *(helper.make_node("MatMul", ["hidden", f"to_{depths}"], [depths]) for depths in DEPTHS),
    ]
    named = {(name if name == "wide" else f"to_{name}"): value for name, value in weights.items()}
    constants = [numpy_helper.from_array(value, name) for name, value in named.items()]
    content = save(named)
    if beside:
        _move_outside(constants, content, file.with_suffix(".safetensors"))
    constants.append(numpy_helper.from_array(np.array(255, np.float32), "white"))
    given = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    outputs = [
        helper.make_tensor_value_info(depths, TensorProto.FLOAT, ["batch", width_of(read)])
        for depths, read in parts.items()
    ]
    graph = helper.make_graph(nodes, "eye", [given], outputs, constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    card = BackboneCard(
        tag="storm.eye",
        sha256=sha256(content).hexdigest(),
        preprocessing=Preprocessing(SIDE, (0.5,) * 3, (0.5,) * 3, SIDE),
        width=WIDTH,
        depth=LEVELS,
        parts=parts,
        made_by="the storm",
    )
    helper.set_model_props(proto, card.properties())
    file.write_bytes(sealed_onnx(proto.SerializeToString()))
    return file


def _move_outside(constants: list[onnx.TensorProto], content: bytes, file: Path) -> None:
    file.write_bytes(content)
    for constant in constants:
        offset, length = content.index(constant.raw_data), len(constant.raw_data)
        set_external_data(constant, file.name, offset=offset, length=length)
        constant.ClearField("raw_data")

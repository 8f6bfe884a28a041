"""A model as one .onnx file that predicts elsewhere, of float32 or int8 weights. No torch here.

The file takes pixels and gives probabilities; the network, the classifier and the calibration are
inside. Only reading images and cutting out the square stay outside: `product.predictor` does that,
and the file's properties say how.
"""

import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dafuse import __version__
from dafuse.backbones.card import INPUT, require_fits, sealed_onnx
from dafuse.backbones.extractor import FEATURES, made_up, session_of
from dafuse.errors import DafuseError
from dafuse.files import require_writable, write_atomically
from dafuse.heads.factored import FactoredHead, TokenFamiliarity
from dafuse.heads.familiarity import BACKGROUND, Familiarity
from dafuse.heads.head import Answers, Head
from dafuse.product.predictor import OUTPUTS, Card, Predictor
from dafuse.product.version import Version

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

LEAST_SMALLER = 0.8  # a file of int8 weights must be this share of the other at most
TOLERANCE = 1e-4  # of probabilities, between the model and a file of float32 weights
OF_FAMILIARITY = 10  # times that: it is of the size of logits, not of probabilities


@dataclass(frozen=True)
class Difference:
    """The difference between the answers of a file and those of its model."""

    largest: float  # of probabilities
    mean: float
    familiarity: float  # the largest
    images: int
    same: int  # of the images: the same class, or unknown by both


@dataclass(frozen=True)
class Exported:
    card: Card  # what the file says about itself
    difference: Difference  # from the model, on images made for that


def export(
    model: Predictor, version: Version, network: "ModelProto", file: str | Path, int8: bool = False
) -> Exported:
    """Write the file, whole and computing what the model does, or not at all.

    Args:
        model: what predicts
        version: what is known of it
        network: pixels to features
        file: its name ends in .onnx
        int8: weights of one byte instead of four: smaller, faster, less exact
    """
    path = Path(file).expanduser()
    require_exportable(path)
    card = _card(model, version, int8)
    _append_head(network, model.head)
    data = _with_card(network, card)
    found = _difference(data, model)
    _require_same(found, card, TOLERANCE)
    if int8:
        smaller = _with_card(_quantised(network), card)
        if len(smaller) > LEAST_SMALLER * len(data):
            raise DafuseError(
                f"int8 makes nothing of {card.backbone} smaller, whose weights are those of "
                "convolutions: leave out --int8. Nothing was written"
            )
        data = smaller
        found = _difference(data, model)
        _require_same(found, card, math.inf)
    write_atomically(path, data)
    return Exported(card, found)


def require_exportable(path: Path) -> None:
    """Refuse a path that cannot be written, before anything long is begun."""
    if path.suffix != ".onnx":
        raise DafuseError(f"the file must end in .onnx, not {path.name!r}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise DafuseError(f"cannot write {path}: it is a folder, or its folder is not there")
    require_writable(path)


def _append_head(network: "ModelProto", head: Head) -> None:
    """Add to the graph what `Head` does with features."""
    from onnx import TensorProto, helper, numpy_helper

    graph, many = network.graph, head if isinstance(head, FactoredHead) else None
    if many is not None:  # a graph solves no system: it gets a weight vector for each class
        head = many.plain()
    constants: dict[str, np.ndarray] = {
        "head.weights": head.weights_FC,
        "head.bias": head.bias_C.astype(np.float32),
        "head.bend": np.array(head.bend, np.float32),
        "head.sharpness": np.array(head.sharpness, np.float32),
        "head.energy": np.array(head.energy, np.float32),
        "head.last_axis": np.array([1], np.int64),
        "head.least": np.array(1e-12, np.float32),
    }
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: list[str], output: str, **options: int) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    feats = FEATURES
    if head.cosine:
        length = add("ReduceL2", [feats, "head.last_axis"], "head.length")
        longer = add("Max", [length, "head.least"], "head.length_or_least")
        feats = add("Div", [feats, longer], "head.units")
    products = add("MatMul", [feats, "head.weights"], "head.products")
    scores = add("Add", [products, "head.bias"], "head.scores")
    bent = scores
    if head.bend:
        bent = add("Asinh", [add("Mul", [scores, "head.bend"], "head.stretched")], "head.bent")
    logits = add("Mul", [bent, "head.sharpness"], "logits")
    add("Softmax", [logits], "probabilities", axis=1)
    if many is not None and many.token is not None:
        constants |= _token_constants(many.token, many.near_CD)
        _add_token_familiarity(add)
    elif head.likeness is None:
        scaled = add("Mul", [scores, "head.energy"], "head.scaled")
        add("ReduceLogSumExp", [scaled, "head.last_axis"], "familiarity", keepdims=0)
    else:
        constants |= _familiarity_constants(head.likeness)
        _add_familiarity(add, scores, bool(head.likeness.mix_CR.size))
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
    )
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param or "batch"
    shapes = {"familiarity": [batch]}
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, shapes.get(name, [batch, head.classes])
        )
        for name in OUTPUTS
    ]
    del graph.output[:]
    graph.output.extend(outputs)


def _familiarity_constants(likeness: Familiarity) -> dict[str, np.ndarray]:
    columns = likeness.columns
    return {
        "head.level": np.array(likeness.level, np.float32),
        "head.mix": likeness.mixing_CR,
        "head.mix_back": np.ascontiguousarray(likeness.mixing_CR.T),
        "head.own": likeness.own_C.astype(np.float32),
        "head.pull": np.array(likeness.pull, np.float32),
        "head.first_column": np.array([columns.start], np.int64),
        "head.end_column": np.array([columns.stop], np.int64),
        "head.centre": likeness.centre_D.astype(np.float32),
        "head.whitening": likeness.whitening_DD.astype(np.float32),
        "head.far": np.array(likeness.far, np.float32),
    }


def _add_familiarity(add: Callable[..., str], scores: str, mixes: bool) -> None:
    """Add to the graph what `heads.familiarity` does."""
    products = add("Mul", [scores, "head.level"], "head.levelled")
    if mixes:
        along = add("MatMul", [scores, "head.mix"], "head.along")
        mixed = add("MatMul", [along, "head.mix_back"], "head.mixed")
        products = add("Add", [products, mixed], "head.class_products")
    near = add("Sub", [products, "head.own"], "head.near")
    nearest = add("ReduceMax", [near, "head.last_axis"], "head.nearest", keepdims=0)
    both = add("Mul", [scores, products], "head.both")
    background = add("ReduceSum", [both, "head.last_axis"], "head.background", keepdims=0)
    pulled = add("Mul", [background, "head.pull"], "head.pulled")
    add("Sub", [nearest, pulled], "head.likeness")
    _add_token(add)
    _add_distance(add)
    _add_farness(add)


def _token_constants(token: TokenFamiliarity, near_CD: np.ndarray) -> dict[str, np.ndarray]:
    columns = token.columns
    return {
        "head.within": token.within_DD,
        "head.near": np.ascontiguousarray(2 * near_CD.T),
        "head.near_squares": (near_CD**2).sum(1),
        "head.background_weight": np.array(BACKGROUND, np.float32),
        "head.likeness_unit": np.array(token.unit, np.float32),
        "head.first_column": np.array([columns.start], np.int64),
        "head.end_column": np.array([columns.stop], np.int64),
        "head.centre": token.centre_D,
        "head.whitening": token.total_DD,
        "head.far": np.array(token.far, np.float32),
    }


def _add_token_familiarity(add: Callable[..., str]) -> None:
    """Add to the graph what `TokenFamiliarity` does."""
    inside = add("MatMul", [_add_token(add), "head.within"], "head.inside")
    along = add("MatMul", [inside, "head.near"], "head.along")
    each = add("Sub", [along, "head.near_squares"], "head.each")
    nearest = add("ReduceMax", [each, "head.last_axis"], "head.nearest", keepdims=0)
    length = add("ReduceSumSquare", [inside, "head.last_axis"], "head.inside_length", keepdims=0)
    beyond = add("Sub", [length, _add_distance(add)], "head.beyond")
    pulled = add("Mul", [beyond, "head.background_weight"], "head.pulled")
    likeness = add("Sub", [nearest, pulled], "head.raw_likeness")
    add("Div", [likeness, "head.likeness_unit"], "head.likeness")
    _add_farness(add)


def _add_token(add: Callable[..., str]) -> str:
    """Add the last CLS token, less its centre; return the name of that."""
    columns = [FEATURES, "head.first_column", "head.end_column", "head.last_axis"]
    token = add("Slice", columns, "head.token")
    return add("Sub", [token, "head.centre"], "head.apart")


def _add_distance(add: Callable[..., str]) -> str:
    """Add the squared distance of the token from the centre."""
    white = add("MatMul", ["head.apart", "head.whitening"], "head.white")
    return add("ReduceSumSquare", [white, "head.last_axis"], "head.distance", keepdims=0)


def _add_farness(add: Callable[..., str]) -> None:
    """Add the last step: the likeness less the distance over the token's squared length."""
    squares = add("ReduceSumSquare", ["head.token", "head.last_axis"], "head.squares", keepdims=0)
    squares = add("Max", [squares, "head.least"], "head.squares_or_least")
    ratio = add("Div", ["head.distance", squares], "head.ratio")
    add("Sub", ["head.likeness", add("Mul", [ratio, "head.far"], "head.farness")], "familiarity")


def _card(model: Predictor, version: Version, int8: bool) -> Card:
    return Card(
        classes=model.names,
        preprocessing=model.preprocessing,
        temperature=1.0,
        threshold=model.threshold,
        backbone=version.backbone.tag,
        backbone_sha256=version.backbone.sha256,
        model_version=version.number,
        weights="int8" if int8 else "float32",
        made_by=__version__,
    )


def _with_card(network: "ModelProto", card: Card) -> bytes:
    from onnx import helper

    require_fits(card.backbone, network.ByteSize())
    del network.metadata_props[:]
    helper.set_model_props(network, card.properties())
    return sealed_onnx(network.SerializeToString())


def _quantised(network: "ModelProto") -> "ModelProto":
    """Make int8 of the weights in the network's products, by column, but not in the classifier."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    products = [node for node in network.graph.node if node.op_type == "MatMul"]
    for number, node in enumerate(network.graph.node):
        node.name = node.name or f"node_{number}"
    of_the_head = [
        node.name for node in products if any(name.startswith("head.") for name in node.input)
    ]
    with tempfile.TemporaryDirectory() as folder, _quiet():
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(
            network,
            file,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=of_the_head,
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser's remarks to its own developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _difference(data: bytes, model: Predictor) -> Difference:
    """Compare the answers of both for the same images; the file runs as for its users."""
    pixels_N3SS = made_up(model.preprocessing.size)
    found = Answers(*session_of(data).run(OUTPUTS[1:], {INPUT: pixels_N3SS}))
    expected = model.head.answers(model.encode(pixels_N3SS))
    apart_NC, apart_N = (np.abs(a - b) for a, b in zip(found, expected, strict=True))
    both = [
        np.where(one.familiarity_N < model.threshold, -1, one.probabilities_NC.argmax(1))
        for one in (found, expected)
    ]
    return Difference(
        float(apart_NC.max()),
        float(apart_NC.mean()),
        float(apart_N.max()),
        len(pixels_N3SS),
        int((both[0] == both[1]).sum()),
    )


def _require_same(found: Difference, card: Card, allowed: float) -> None:
    """Refuse a file that does not compute what the model does."""
    if not max(found.largest, found.familiarity / OF_FAMILIARITY) < allowed:  # or is no number
        raise DafuseError(
            f"what was exported of {card.backbone} gives other answers than the model "
            f"(probabilities differ by up to {found.largest:.2g}): nothing was written"
        )

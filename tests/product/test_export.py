"""Exported files compute what the model does, say what they are, and are whole or not there."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime import InferenceSession
from timm.layers.mlp import SwiGLU

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.card import sealed_onnx
from dafuse.backbones.folded import fold, foldable
from dafuse.backbones.vit import ViT
from dafuse.cli import main
from dafuse.errors import DafuseError
from dafuse.product import export
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import read_card
from helpers.photographs import photographs
from helpers.places import OLD_MODEL, ROOT
from helpers.product_models import taught
from helpers.small_networks import PREPROCESSING, small_timm

pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.fixture(scope="module", params=["daf", "lift", "simplecil"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on the embedded network: one of the old format, taught by DAF, and two new ones."""
    if request.param == "daf":
        return OLD_MODEL
    path = tmp_path_factory.mktemp("model") / request.param
    names = [f"class {number % 3}" for number in range(len(photographs()))]
    Classifier.create(path, method=request.param).learn(photographs(), names)
    return path


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Classifier:
    return Classifier.open(folder, device="cpu")


@pytest.fixture(scope="module")
def float_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("export") / "model.onnx"
    main(["export", str(folder), str(file)])
    return file


def squares(classifier: Classifier) -> np.ndarray:
    """The pixels that a file takes, of real photographs."""
    looks = classifier.extractor.preprocessing
    return np.stack([looks.centre_square(image) for image in photographs()])


def test_onnx_gives_the_models_probabilities(classifier: Classifier, float_file: Path) -> None:
    session = InferenceSession(float_file)
    pixels, expected = squares(classifier), classifier.probabilities(photographs())
    familiar = [found.familiarity for found in classifier.predict(photographs())]
    assert np.ptp(expected[:, 0]) > 0.1  # they are not all the same
    for batch in (1, 3, 7):
        logits, probabilities, familiarity = session.run(None, {"pixels": pixels[:batch]})
        assert np.abs(probabilities - expected[:batch]).max() < 1e-4
        assert familiarity == pytest.approx(familiar[:batch], abs=1e-3)
        sharp = np.exp(logits)
        assert sharp / sharp.sum(1, keepdims=True) == pytest.approx(probabilities, abs=1e-5)


def test_an_onnx_file_says_what_it_is(classifier: Classifier, float_file: Path) -> None:
    proto = onnx.load(float_file)
    onnx.checker.check_model(proto)
    properties = {prop.key: prop.value for prop in proto.metadata_props}
    assert json.loads(properties["dafuse.classes"]) == classifier.classes
    looks = json.loads(properties["dafuse.preprocessing"])
    side, resize = (64, 73) if classifier.folder.path == OLD_MODEL else (128, 146)
    assert (looks["size"], looks["resize"]) == (side, resize)
    assert set(json.loads(properties["dafuse.how_to"])) > {"input", "interpolation"}
    card = read_card(properties, float_file)
    assert card.preprocessing == classifier.extractor.preprocessing
    assert card.threshold == classifier.model.threshold
    assert (card.backbone, card.model_version) == (
        classifier.extractor.tag,
        classifier.version.number,
    )
    (given,) = proto.graph.input
    first, *others = given.type.tensor_type.shape.dim
    assert (first.dim_param, [dim.dim_value for dim in others]) == ("batch", [3, side, side])
    assert [output.name for output in proto.graph.output] == [
        "logits",
        "probabilities",
        "familiarity",
    ]


def test_an_onnx_file_has_nothing_needless(classifier: Classifier, float_file: Path) -> None:
    operations = [node.op_type for node in onnx.load(float_file).graph.node]
    assert "Dropout" not in operations
    # 12 blocks of queries and keys, their values, qkv, proj, fc1, fc2; with an adapter also down,
    # while up joins fc2; and a few of the classifier and of familiarity
    products = operations.count("MatMul") + operations.count("Gemm")
    each = 7 if classifier.version.method == "daf" else 6
    assert products in range(each * 12, each * 12 + 6)
    assert b"site-packages" not in float_file.read_bytes()
    assert str(ROOT).encode() not in float_file.read_bytes()


def test_int8_is_small_and_close(
    classifier: Classifier, float_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "int8.onnx"
    main(["export", str(classifier.folder.path), str(file), "--int8"])
    said = capsys.readouterr().out
    assert "3 classes, int8" in said
    told = re.search(r"differ by up to (\S+), by (\S+) on average", said)
    assert told
    assert re.search(r"on 8 made-up images: the same answer for [5-8];", said)
    assert 1e-4 < float(told[2]) < float(told[1]) < 0.3  # one byte a weight is not exact
    assert file.stat().st_size < 0.4 * float_file.stat().st_size
    session = InferenceSession(file)
    assert json.loads(session.get_modelmeta().custom_metadata_map["dafuse.weights"]) == "int8"
    found = session.run(["probabilities"], {"pixels": squares(classifier)})[0]
    expected = classifier.probabilities(photographs())
    assert 0 < np.abs(found - expected).mean() < 0.03
    sure = expected.max(1) > 0.7
    assert (found.argmax(1) == expected.argmax(1))[sure].all()


def another_vit(**arguments: Any) -> ViT:
    model = small_timm(depth=2, **arguments)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return ViT(model, PREPROCESSING, "another")


@pytest.mark.parametrize(
    ("arguments", "merged"),
    [
        ({}, True),
        ({"init_values": 0.1}, True),  # layer scale
        ({"proj_bias": False}, True),
        ({"scale_mlp_norm": True}, False),
        ({"mlp_layer": SwiGLU}, False),
    ],
)
def test_a_folded_network_gives_the_same_features(
    arguments: dict[str, Any], merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vit = another_vit(**arguments)
    adapter = Adapter(vit.depth, vit.width, rank=4, scale=0.5, dropout=0.3).eval()
    generator = torch.Generator().manual_seed(1)
    values = {n: torch.randn(t.shape, generator=generator) for n, t in adapter.tensors().items()}
    adapter.set(values)
    images = torch.randn(3, 3, 32, 32, generator=generator)
    expected = vit(images, adapter)
    assert (expected - vit(images)).abs().max() > 0.1  # the adapter matters
    folded = fold(vit, adapter)
    assert torch.allclose(folded(images), expected, atol=1e-4)
    assert torch.equal(vit(images, adapter), expected)  # the network itself is as it was
    assert _linears(folded) - _linears(vit) == vit.depth * (1 if merged else 2)
    assert foldable(vit) == merged
    if merged:
        in_two = fold(vit, adapter, in_two_products=True)
        assert torch.allclose(in_two(images), expected, atol=1e-4)
        monkeypatch.setattr("dafuse.backbones.folded.FEW_TOKENS", 0)
        assert torch.allclose(in_two(images), expected, atol=1e-4)
        assert _linears(in_two) == _linears(vit)


def _linears(vit: ViT) -> int:
    return sum(isinstance(part, torch.nn.Linear) for part in vit.timm.blocks.modules())


def test_a_network_that_is_trained_is_not_foldable() -> None:
    """A folded copy would not follow it."""
    assert foldable(another_vit())
    assert not foldable(another_vit().trainable_copy())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("nowhere model.onnx", "no model nowhere"),
        (f"{OLD_MODEL} model.tflite", "must end in .onnx, not 'model.tflite'"),
        (f"{OLD_MODEL} nowhere/model.onnx", "cannot write nowhere/model.onnx"),
        (f"{OLD_MODEL} folder.onnx", "cannot write folder.onnx: it is a folder"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.onnx").mkdir()
    with pytest.raises(SystemExit) as stopped:
        main(["export", *arguments.split()])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert [path.name for path in Path().iterdir()] == ["folder.onnx"]


def test_what_cannot_be_exported_leaves_the_file_as_it_was(
    tmp_path: Path, small_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path / "model", {0: 6, 1: 6})
    file = tmp_path / "model.onnx"
    file.write_text("an older one")
    monkeypatch.setattr("dafuse.backbones.card.MOST_BYTES", 1000)
    with pytest.raises(DafuseError, match=r"an \.onnx file holds at most .* GB"):
        model.export(file)
    assert file.read_text() == "an older one"


def change_constant(
    name: str, change: Callable[[np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have every file computed with this constant changed."""

    def sealed(content: bytes) -> bytes:
        network = onnx.load_from_string(content)
        (tensor,) = [each for each in network.graph.initializer if each.name == name]
        changed = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
        tensor.CopyFrom(numpy_helper.from_array(changed, name))
        return sealed_onnx(network.SerializeToString())

    monkeypatch.setattr(export, "sealed_onnx", sealed)


@pytest.mark.parametrize("int8", [False, True])
def test_a_file_that_computes_something_else_is_not_written(
    tmp_path: Path, small_network: None, monkeypatch: pytest.MonkeyPatch, int8: bool
) -> None:
    model = taught(tmp_path / "model", {0: 6, 1: 6})
    file = tmp_path / "model.onnx"
    assert model.export(file, int8).difference.largest < (0.3 if int8 else 1e-4)
    before = file.read_bytes()
    change_constant("head.weights", lambda weights_FC: weights_FC[:, ::-1], monkeypatch)
    with pytest.raises(DafuseError, match="gives other answers than the model") as caught:
        model.export(file, int8)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.onnx"}


def test_int8_weights_that_give_no_number_are_not_written(
    tmp_path: Path, small_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path / "model", {0: 6, 1: 6})
    factors = [1, np.float32(math.nan)]  # of the file in float32, and of that in int8
    change_constant("head.weights", lambda weights_FC: weights_FC * factors.pop(0), monkeypatch)
    with pytest.raises(DafuseError, match="by up to nan"):
        model.export(tmp_path / "model.onnx", int8=True)
    assert not (tmp_path / "model.onnx").exists()


def test_what_decides_about_unknown_is_compared_too(
    tmp_path: Path, small_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path / "model", {0: 6, 1: 6})
    change_constant("head.level", lambda level: 100 * level, monkeypatch)
    with pytest.raises(DafuseError, match=r"other answers .* differ by up to \S+e-0"):
        model.export(tmp_path / "model.onnx")

"""Networks as files and by tag, on the command line: exported, moved, gone, unfit for a method."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from dafuse.backbones.graph import export_backbone
from dafuse.backbones.load import build_backbone, load_backbone
from dafuse.cli import main
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from helpers.network_families import small_network
from helpers.processes import dafuse_without
from helpers.product_models import pictures


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights of a real tag that is small enough."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    state = timm.create_model("test_resnet.r160_in1k").state_dict()
    save_file(state, folder / "test_resnet.r160_in1k.safetensors")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number, (pixels, name) in enumerate(zip(*pictures({0: 6, 1: 6}), strict=True)):
        (root / name).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def ask(command: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


def test_a_network_is_exported_and_taught_without_torch(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(weights))
    file, model = tmp_path / "resnet.onnx", tmp_path / "model"
    with_torch = [sys.executable, "-m", "dafuse"]
    done = ask(with_torch, "backbone", "export", "test_resnet.r160_in1k", file)
    assert done.returncode == 0, done.stderr
    assert "images of 160 x 160 pixels" in done.stdout
    assert f"dafuse learn MODEL SOURCE --backbone {file}" in done.stdout
    monkeypatch.delenv("DAFUSE_WEIGHTS")
    light = dafuse_without("torch", "timm")
    image = next(photos.rglob("*.png"))
    done = ask(light, "learn", model, photos, "--backbone", file)
    assert done.returncode == 0, done.stderr
    assert "network test_resnet.r160_in1k" in done.stdout + done.stderr
    asked = ask(light, "predict", model, image, "--json").stdout
    assert asked == ask(with_torch, "predict", model, image, "--json").stdout

    moved = file.rename(tmp_path / "moved.onnx")
    gone = ask(light, "predict", model, image)
    assert gone.returncode == 2
    assert "needs torch" in gone.stderr
    assert asked == ask(light, "predict", model, image, "--json", "--weights", moved).stdout
    more = ask(light, "learn", model, photos, "--backbone", moved, "--no-recognise")
    assert more.returncode == 0, more.stderr
    moved.rename(tmp_path / "test_resnet.r160_in1k.onnx")
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(tmp_path))
    assert ask(light, "predict", model, image).returncode == 0
    other = tmp_path / "other"
    by_tag = ask(light, "learn", other, photos, "--backbone", "test_resnet.r160_in1k")
    assert by_tag.returncode == 0, by_tag.stderr


@cache
def eye(digit: str) -> bytes:
    """Return a small network's file; its weights are said to have the SHA-256 of this digit alone.

    It is made once for each digit: a trace takes seconds.
    """
    network = small_network("ResNet")
    network.sha256 = digit * 64
    with TemporaryDirectory() as folder:
        file = Path(folder) / "eye.onnx"
        export_backbone(network, file)
        return file.read_bytes()


def write_eye(file: Path, digit: str = "1") -> None:
    file.write_bytes(eye(digit))


def test_a_file_that_is_gone_is_named_where_torch_is_not_installed(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, model = tmp_path / "eye.onnx", str(tmp_path / "model")
    write_eye(file)
    main(["learn", model, str(photos), "--backbone", str(file)])
    file.unlink()
    monkeypatch.setattr("dafuse.taught.open_extractor.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["predict", model, str(next(photos.rglob("*.png")))])
    said = capsys.readouterr().err
    assert f"{file}, the network that the model was taught with, is gone (--weights FILE" in said
    assert "needs torch, which is not installed" in said


def test_a_lesson_remembers_where_the_file_lies_now(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, model = tmp_path / "eye.onnx", str(tmp_path / "model")
    write_eye(file)
    main(["learn", model, str(photos), "--backbone", str(file)])
    moved = str(file.rename(tmp_path / "moved.onnx"))
    main(["learn", model, str(photos), "--backbone", moved, "--no-recognise"])
    main(["predict", model, str(next(photos.rglob("*.png")))])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["predict", model, str(photos), "--device", "cuda"])
    said = capsys.readouterr().err
    assert "onnxruntime has no cuda here: pip install onnxruntime-gpu" in said
    assert "is gone" not in said
    with pytest.raises(SystemExit):
        main(["export", model, str(tmp_path / "model.onnx"), "--int8"])
    assert "leave out --int8. Nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()


def test_a_file_of_another_network_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_eye(tmp_path / "one.onnx", "1")
    write_eye(tmp_path / "two.onnx", "2")
    model = str(tmp_path / "model")
    main(["learn", model, str(photos), "--backbone", str(tmp_path / "one.onnx")])
    before = (tmp_path / "model" / "model.json").read_bytes()
    for options in (["--backbone"], ["--weights"]):
        with pytest.raises(SystemExit):
            main(["learn", model, str(photos), *options, str(tmp_path / "two.onnx")])
    assert (tmp_path / "model" / "model.json").read_bytes() == before


REFUSED: dict[str, tuple[list[str], str]] = {
    "prompts on a ConvNeXt": (
        ["run", "--method", "l2p", "--backbone", "convnext_atto.d2_in1k"],
        "l2p needs places for prompts, which the backbone convnext_atto.d2_in1k does not have: "
        "plain ViTs have them, such as --backbone embedded",
    ),
    "adapters on a ResNet": (
        ["run", "--method", "daf", "--backbone", "resnet18.a1_in1k"],
        "daf needs places for adapters, which the backbone resnet18.a1_in1k does not have",
    ),
    "a tuned lift on a ResNet": (
        ["run", "--method", "lift", "--method.tune", "first", "--backbone", "resnet18.a1_in1k"],
        "lift with tune=first needs places for adapters",
    ),
    "a split Swin": (
        ["run", "--method", "memo", "--backbone", "swin_tiny_patch4_window7_224.ms_in1k"],
        "memo needs a last block that can be split off",
    ),
    "an exported network in a run": (
        ["run", "--method", "lift", "--backbone", "network.onnx"],
        "a run needs the tag of a network of timm, and network.onnx is an exported one",
    ),
    "a bare name": (["run", "--backbone", "resnet50"], "take --backbone resnet50.a1_in1k"),
    "a tuned lesson on a ResNet": (
        ["learn", "MODEL", "PHOTOS", "--tune", "--backbone", "resnet18.a1_in1k"],
        "lift with tune=first needs places for adapters",
    ),
    "a file and weights": (
        ["learn", "MODEL", "PHOTOS", "--backbone", "eye.onnx", "--weights", "w.safetensors"],
        "eye.onnx has its weights inside: leave out --weights",
    ),
    "a misspelled tag": (
        ["learn", "MODEL", "PHOTOS", "--backbone", "resnet50.a1h_in1"],
        "no backbone is called resnet50.a1h_in1; did you mean resnet50.a1h_in1k",
    ),
    "weights as a backbone": (
        ["learn", "MODEL", "PHOTOS", "--backbone", "w.safetensors"],
        "w.safetensors is a file of weights: name its network by --backbone TAG",
    ),
    "no such file": (
        ["learn", "MODEL", "PHOTOS", "--backbone", "nothing.onnx"],
        "there is no file nothing.onnx",
    ),
    "another ending": (
        ["backbone", "export", "embedded", "network.pt"],
        "the file of an exported network ends in .onnx, which network.pt does not",
    ),
    "no such folder": (
        ["backbone", "export", "embedded", "nowhere/network.onnx"],
        "cannot write nowhere/network.onnx",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    arguments: list[str],
    message: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr("dafuse.backbones.load.fetch", loaded)
    monkeypatch.setattr("dafuse.backbones.load.load_file", loaded)
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": "model", "PHOTOS": str(photos)}
    with pytest.raises(SystemExit) as stopped:
        main([places.get(word, word) for word in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "runs"])
    assert not list(tmp_path.rglob("*.json"))


def test_an_exported_model_is_no_network_and_the_other_way_round(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = str(tmp_path / "model"), str(tmp_path / "model.onnx")
    main(["learn", model, str(photos)])
    main(["export", model, file])
    for arguments, message in (
        (["learn", str(tmp_path / "b"), str(photos), "--backbone", file], "is not a backbone"),
        (["predict", str(tmp_path / "eye.onnx"), file], "was not made by dafuse export"),
    ):
        if "eye.onnx" in arguments[1]:
            write_eye(tmp_path / "eye.onnx")
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_another_device_is_refused_from_python(tmp_path: Path) -> None:
    with pytest.raises(DafuseError, match="the device must be auto, cpu, cuda, mps, not 'gpu'"):
        Classifier.create(tmp_path / "model", device="gpu")


def test_the_weights_of_a_file_are_all_but_its_classifier(weights: Path) -> None:
    file = weights / "test_resnet.r160_in1k.safetensors"
    network = load_backbone("test_resnet.r160_in1k", str(file))
    assert network.offers == {"features", "whole network"}
    assert not any(name.startswith("fc.") for name in network.timm.state_dict())
    state = timm.create_model("test_resnet.r160_in1k").state_dict()
    state.pop(next(name for name in state if "conv1" in name))
    save_file(state, weights / "cut.safetensors")
    with pytest.raises(DafuseError, match="does not hold the weights of test_resnet"):
        load_backbone("test_resnet.r160_in1k", str(weights / "cut.safetensors"))


def test_networks_that_dafuse_cannot_show_images_to_are_refused() -> None:
    with pytest.raises(DafuseError, match=re.escape("which dafuse does not make")):
        build_backbone("vit_base_patch16_sapiens2.fb")

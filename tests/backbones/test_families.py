"""One small network of each family: its features, in benchmark runs, lessons and exported files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from dafuse.backbones.adapter import AdapterBank, AdapterForEach
from dafuse.backbones.depths import DEPTHS, place_of
from dafuse.backbones.extractor import Extractor, made_up
from dafuse.backbones.graph import export_backbone
from dafuse.backbones.load import build_backbone, load_backbone
from dafuse.backbones.network import Network
from dafuse.cli import main
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.fusion.gradients import gradient_and_fisher
from dafuse.methods.registry import METHODS
from dafuse.methods.training import init_adapter
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.taught.torch_extractor import TorchExtractor
from helpers.network_families import FAMILIES, STAGED, small_network
from helpers.processes import dafuse_without
from helpers.product_models import pictures
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

every_family = pytest.mark.parametrize("family", FAMILIES)
every_staged = pytest.mark.parametrize("family", STAGED)
COUNTS = [6, 5, 6, 5]


def trainer_of(family: str, seed: int = 7) -> Trainer:
    return small_trainer(small_dataset(COUNTS), seed, network=small_network(family))


def images_for(network: Network, count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, network.preprocessing.size, network.preprocessing.size)


# features


@every_family
def test_the_last_feature_is_what_timms_classifier_would_be_given(family: str) -> None:
    network = small_network(family)
    images = images_for(network)
    with torch.no_grad():
        theirs, ours = network.timm(images), network(images)
    if "adapters" not in network.offers or family in STAGED:
        theirs = F.layer_norm(theirs, theirs.shape[1:])  # brought to one scale
    assert torch.allclose(ours, theirs, atol=1e-4)


@every_family
@pytest.mark.parametrize("depths", DEPTHS)
def test_parts_say_what_the_features_are(family: str, depths: Any) -> None:
    network = small_network(family)
    images = images_for(network)
    with torch.no_grad():
        found = network(images, None, depths)
        together = network.at_depths(images, None, DEPTHS)
    assert torch.allclose(found, together[depths], atol=1e-5)
    parts = network.parts(depths)
    assert found.shape == (3, network.width_at(depths)) == (3, sum(p.width for p in parts))
    assert len(set(parts)) == len(parts)
    assert {part.level for part in parts} <= set(range(network.depth))
    for part in parts:
        values = found[:, place_of(part, parts)]
        assert (part.what != "std") or (values >= 0).all()
        assert values.std() > 1e-3  # nothing is a constant


@every_staged
def test_levels_of_stages_are_timms(family: str) -> None:
    network = small_network(family)
    images = images_for(network)
    with torch.no_grad():
        _, theirs = network.timm.forward_intermediates(images)
        ours = network.at_depths(images, None, ["all"])["all"]
    parts = network.parts("all")
    for part, grid in zip(parts[:-2], theirs, strict=False):
        tokens = F.layer_norm(grid.flatten(2).transpose(1, 2), grid.shape[1:2])
        assert torch.allclose(ours[:, place_of(part, parts)], tokens.mean(1), atol=1e-4)


def test_every_need_is_met_by_some_family_and_refused_by_name_by_another() -> None:
    offers = {family: small_network(family).offers for family in FAMILIES}
    assert all({"features", "whole network"} <= found for found in offers.values())
    assert {f for f, found in offers.items() if "adapters" in found} == {
        "ViT",
        "DINOv2 with registers",
        "CLIP",
        *STAGED,
    }
    assert not any("prompts" in offers[family] for family in STAGED)


# adapters beside the MLPs of stages


def filled(trainer: Trainer) -> Any:
    adapter = init_adapter(trainer, 0, 4)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return adapter


@every_staged
def test_a_new_adapter_changes_nothing_and_a_filled_one_every_level(family: str) -> None:
    trainer = trainer_of(family)
    network = trainer.network
    images = images_for(network)
    new, full = init_adapter(trainer, 0, 4), filled(trainer)
    assert [tuple(stage) for stage in network.stages] == [
        (len(one.down.weight), one.down.weight.shape[2]) for one in new.stages
    ]
    with torch.no_grad():
        bare, same, other = (
            network.at_depths(images, attached, ["all"])["all"] for attached in (None, new, full)
        )
    assert torch.equal(bare, same)
    parts = network.parts("all")
    for part in parts:
        place = place_of(part, parts)
        assert (bare[:, place] - other[:, place]).abs().max() > 1e-3, part


def beside_the_last_block(adapter: Any) -> dict[str, torch.Tensor]:
    last = adapter.stages[3].tensors()
    return {name: tensor[-1] for name, tensor in last.items()}


def test_the_branch_is_the_papers_beside_the_mlp_of_a_convnext_block() -> None:
    """The last block by hand: x + MLP part + scale * up(relu(down(x)))."""
    trainer = trainer_of("ConvNeXt")
    network, adapter = trainer.network, filled(trainer)
    seen: list[torch.Tensor] = []
    last = network.timm.stages[-1].blocks[-1]
    handle = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        found = network.walk(images_for(network), adapter).levels[-1][0]
        handle.remove()
        x = seen[0]
        own = {
            name.rpartition("3.")[2]: t[-1]
            for name, t in adapter.tensors().items()
            if ".3." in name
        }
        tokens = x.permute(0, 2, 3, 1)
        hidden = torch.relu(tokens @ own["down.weight"].T + own["down.bias"])
        branch = adapter.scale * (hidden @ own["up.weight"].T + own["up.bias"])
        expected = last(x).permute(0, 2, 3, 1) + branch
    assert torch.allclose(found, expected.flatten(1, 2), atol=1e-5)


def test_the_branch_reads_what_a_swin_block_has_after_attention() -> None:
    trainer = trainer_of("Swin")
    network, adapter = trainer.network, filled(trainer)
    seen: list[torch.Tensor] = []
    last = network.timm.layers[-1].blocks[-1]
    handle = last.norm2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        found = network.walk(images_for(network), adapter).levels[-1][0]
        handle.remove()
        h = seen[0]
        own = {
            name.rpartition("3.")[2]: t[-1]
            for name, t in adapter.tensors().items()
            if ".3." in name
        }
        hidden = torch.relu(h @ own["down.weight"].T + own["down.bias"])
        branch = adapter.scale * (hidden @ own["up.weight"].T + own["up.bias"])
        expected = h + last.mlp(last.norm2(h)) + branch
    assert torch.allclose(found, expected.flatten(1, 2), atol=1e-5)


@every_staged
def test_a_bank_is_each_adapter_alone(family: str) -> None:
    trainer = trainer_of(family)
    adapters = [filled(trainer), init_adapter(trainer, 0, 4)]
    bank = AdapterBank(adapters[0].scale)
    for adapter in adapters:
        bank.append(adapter.tensors())
    images = images_for(trainer.network)
    with torch.no_grad():
        together = trainer.encode(images, bank)
        alone = torch.stack([trainer.encode(images, adapter) for adapter in adapters], 1)
    assert torch.allclose(together, alone, atol=1e-4)


@every_staged
def test_the_gradient_of_each_image_is_its_own(family: str) -> None:
    trainer = trainer_of(family)
    adapter, images = filled(trainer), images_for(trainer.network)
    copies = AdapterForEach(adapter)

    def losses(batch: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return trainer.encode(batch, copies).square().sum(1).sqrt(), copies.own

    def losses_of_one(batch: torch.Tensor) -> torch.Tensor:
        return trainer.encode(batch, adapter)[:, 0].sum()

    def first(batch: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return trainer.encode(batch, copies)[:, 0], copies.own

    found = gradient_and_fisher(first, [(images, torch.zeros(3))])
    squares = {name: torch.zeros_like(p) for name, p in adapter.named_parameters()}
    for image in images:
        named = dict(adapter.named_parameters())
        gradients = torch.autograd.grad(losses_of_one(image[None]), list(named.values()))
        for name, gradient in zip(named, gradients, strict=True):
            squares[name] += gradient.square() / 3
    for name, fisher in found.fisher.items():
        assert torch.allclose(fisher, squares[name], rtol=1e-3, atol=1e-6), name


@every_staged
def test_daf_learns_a_stream(family: str) -> None:
    """The loss falls in each task, adapters of all stages are fused, and no class is lost."""
    trainer = small_trainer(small_dataset([8] * 6), network=small_network(family))
    method = METHODS["daf"](trainer=trainer, epochs=6, batch_size=8, lr=0.002, align_epochs=5)
    stream = small_stream(trainer.loader.dataset, [2, 2, 2])
    for task in stream:
        trainer.begin_task()
        before = method.global_adapter.tensors()
        diagnosis = method.learn(task)
        assert trainer.epoch_losses[-1] < trainer.epoch_losses[0]
        now = method.global_adapter.tensors()
        assert all(not torch.equal(before[name], now[name]) for name in now)
    assert len(diagnosis["beta"]) == sum(blocks for blocks, _ in trainer.network.stages)
    right = []
    with torch.no_grad():
        for test in stream.tests_until(stream[2]):
            for images, labels in trainer.batches(test):
                right.append(method.logits(images).argmax(1) == labels)
    assert torch.cat(right).double().mean() > 0.8


# lessons, exported models, exported networks


def open_small(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    def load(*_: object, **__: object) -> TorchExtractor:
        network = small_network(family)
        network.sha256 = "0" * 64
        return TorchExtractor(network, "cpu")

    monkeypatch.setattr("dafuse.product.classifier.open_extractor", load)


@every_family
@pytest.mark.parametrize("method", ["lift", "simplecil"])
def test_a_model_is_taught_asked_and_exported(
    family: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_small(monkeypatch, family)
    model = Classifier.create(tmp_path / "model", method=method, device="cpu")
    model.learn(*pictures({0: 8, 1: 8}))
    report = model.learn(*pictures({2: 8}, seed=1))
    assert [(one.name, one.new) for one in report.classes] == [("class 2", True)]
    images, names = pictures({0: 4, 1: 4, 2: 4}, seed=5)
    found = [one.top[0][0] for one in model.predict(images)]
    assert np.mean([a == b for a, b in zip(found, names, strict=True)]) > 0.5
    again = Classifier.open(tmp_path / "model", device="cpu")
    assert np.array_equal(again.probabilities(images), model.probabilities(images))
    file = tmp_path / "model.onnx"
    model.export(file)
    exported = ExportedModel(file)
    assert np.abs(exported.probabilities(images) - model.probabilities(images)).max() < 1e-4


@every_staged
def test_a_tuned_model_is_taught_and_exported(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_small(monkeypatch, family)
    quick: dict[str, Any] = {"method": "daf", "epochs": 2, "batch_size": 8, "align_epochs": 2}
    model = Classifier.create(tmp_path / "model", device="cpu", **quick)
    model.learn(*pictures({0: 8, 1: 8}))
    images, _ = pictures({0: 4, 1: 4}, seed=5)
    again = Classifier.open(tmp_path / "model", device="cpu")
    assert np.allclose(again.probabilities(images), model.probabilities(images), atol=1e-5)
    model.export(tmp_path / "model.onnx")
    exported = ExportedModel(tmp_path / "model.onnx")
    assert np.abs(exported.probabilities(images) - model.probabilities(images)).max() < 1e-4


@every_family
def test_an_exported_network_gives_the_features_of_torch(family: str, tmp_path: Path) -> None:
    network = small_network(family)
    network.sha256 = "1" * 64
    file = tmp_path / "network.onnx"
    assert export_backbone(network, file) < 1e-4
    eye, by_torch = Extractor(file), TorchExtractor(network, "cpu")
    assert (eye.tag, eye.sha256, eye.preprocessing) == (
        network.tag,
        network.sha256,
        network.preprocessing,
    )
    squares = np.ascontiguousarray(made_up(network.preprocessing.size)[:5])
    for depths in DEPTHS:
        assert eye.parts(depths) == network.parts(depths)
        assert eye.width_at(depths) == network.width_at(depths)
        ours, theirs = eye.encode(squares, depths), by_torch.encode(squares, depths)
        assert np.abs(ours - theirs).max() < 1e-4 * max(1, np.abs(theirs).max())
    alone = np.concatenate([eye.encode(square[None], "moments") for square in squares])
    assert np.abs(alone - eye.encode(squares, "moments")).max() < 1e-3


# the commands


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


def write_eye(file: Path, digit: str = "1") -> None:
    """Export a small network, whose weights are said to have the SHA-256 of this digit alone."""
    network = small_network("ResNet")
    network.sha256 = digit * 64
    export_backbone(network, file)


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

"""One small network of each family: its features, in benchmark runs, lessons and exported files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dafuse.backbones.adapter import AdapterBank, AdapterForEach
from dafuse.backbones.depths import DEPTHS, place_of
from dafuse.backbones.extractor import Extractor, made_up
from dafuse.backbones.graph import export_backbone
from dafuse.backbones.network import Network
from dafuse.engine.trainer import Trainer
from dafuse.fusion.gradients import gradient_and_fisher
from dafuse.methods.registry import METHODS
from dafuse.methods.training import init_adapter
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.taught.torch_extractor import TorchExtractor
from helpers.network_families import FAMILIES, STAGED, small_network
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

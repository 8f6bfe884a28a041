"""The contract that every registered method keeps. A new method needs one row in QUICK."""

from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dafuse.backbones.network import Network
from dafuse.backbones.staged import Staged
from dafuse.backbones.vit import ViT
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Stream
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.methods.contract import Method
from dafuse.methods.registry import METHODS, require_observes
from helpers.network_families import small_network
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

# options that make each method quick here
EPOCHS: dict[str, Any] = {"epochs": 2, "batch_size": 8}
ADAPTER = {**EPOCHS, "adapter_rank": 4}
ALIGNED = {**ADAPTER, "align_epochs": 3, "align_samples": 16}
FOSTER = {**EPOCHS, "first_epochs": 2, "compress_epochs": 2, "exemplars_per_class": 2}
QUICK: dict[str, dict[str, Any]] = {
    "daf": ALIGNED,
    "daf-paper": ALIGNED,
    "daf-retrieval": ALIGNED,
    "ease": ADAPTER,
    "mos": ALIGNED,
    "tuna": ALIGNED,
    "simplecil": {},
    "aper": ADAPTER,
    "lift": {**ADAPTER, "width": 16},
    "ranpac": {**ADAPTER, "projection": 32},
    "layup": {**ADAPTER, "tune": "first"},
    "klda": {"width": 24},
    "anacp": {**ADAPTER, "tune": "first", "width": 24, "samples": 10},
    "ssiat": {**ALIGNED, "first_epochs": 2},
    "l2p": EPOCHS,
    "dualprompt": EPOCHS,
    "coda": EPOCHS,
    "finetune": EPOCHS,
    "joint": ADAPTER,
    "icarl": {**EPOCHS, "exemplars_per_class": 2},
    "memo": {**EPOCHS, "first_epochs": 2, "exemplars_per_class": 2},
    "foster": FOSTER,
    "slca": {**EPOCHS, "align_epochs": 3, "align_samples": 16},
}
VARIANTS = list(QUICK.items()) + [
    ("daf", {**ALIGNED, **variant})
    for variant in (
        {"init": "previous"},
        {"init": "random", "rule": "static"},
        {"init": "random_shared", "rule": "last"},
        {"rule": "mean"},
        {"fisher": "per_batch", "fisher_scope": "layer", "use_gradient": False},
        {"fisher_scope": "tensor", "gamma": 0.2, "gamma_consistent": True},
        {"memory": "diagonal", "memory_dtype": "float16", "align_epochs": 0},
        {"memory": "low_rank", "memory_rank": 3, "first_task": "fuse"},
        {"head": "ridge", "head_width": 8},
        {"head": "lda", "head_width": 0, "rule": "mean", "memory_dtype": "float16"},
    )
]
VARIANTS += [
    ("finetune", {**EPOCHS, "local_ce": False}),
    ("icarl", {**EPOCHS, "predict": "cnn"}),
    ("foster", {**FOSTER, "predict": "student"}),
    ("joint", {**EPOCHS, "tune": "full", "lr": 1e-3}),
    ("slca", {**EPOCHS, "memory": "diagonal", "align_epochs": 0}),
]
VARIANTS += [
    ("daf-retrieval", {**ALIGNED, "first_task": "fuse", "stats_adapter": "task"}),
    ("daf-retrieval", {**ALIGNED, "head": "ridge", "head_width": 8}),
    ("mos", {**ALIGNED, "memory": "diagonal", "orth": 0.0, "merge": 0.0, "rounds": 0}),
    ("tuna", {**ALIGNED, "predict": "universal", "orth": 0.0, "decay": True}),
    ("tuna", {**ALIGNED, "predict": "released", "memory": "diagonal", "margin": 0.3}),
]
VARIANTS += [
    ("lift", {**ADAPTER, "tune": "first", "features": "top", "head": "auto"}),
    ("lift", {**ADAPTER, "tune": "each", "tune_tasks": 2, "features": "all", "head": "lda"}),
    ("lift", {"keep": "classwise", "rank": 3, "precision": "float64", "penalty": 0.1}),
    ("lift", {"features": "last", "width": 3, "precision": "float32"}),
]
VARIANTS += [
    ("layup", {"blocks": 1}),
    ("klda", {"width": 200, "gamma": 0.01, "penalty": 1e-3, "precision": "float16"}),
    ("anacp", {"width": 200, "lifts": 1, "samples": 3, "penalty": 1.0, "dewhiten": True}),
    ("anacp", {"width": 9, "samples": 4, "alpha": 0.0, "precision": "float16"}),
    ("ranpac", {**ADAPTER, "projection": 7}),  # fewer dimensions than images
    ("ssiat", {**ALIGNED, "first_epochs": 1, "margin": 0.3, "memory": "diagonal"}),
    ("ssiat", {**ADAPTER, "first_epochs": 1, "align_epochs": 0}),
]
VARIANTS += [
    ("l2p", {**EPOCHS, "pool_size": 3, "prompt_length": 1, "prompts_per_image": 3}),
    ("dualprompt", {**EPOCHS, "general_layers": 0, "prompt_length": 1}),
    ("coda", {**EPOCHS, "components_per_task": 13, "prompt_length": 2, "orthogonality": 0.1}),
]
# on another network than the small ViT
STAGED_ADAPTER = {**ADAPTER, "network": "ConvNeXt"}
VARIANTS += [
    ("daf", {**ALIGNED, "network": "ConvNeXt"}),
    ("daf", {**ALIGNED, "network": "Swin", "fisher_scope": "layer"}),
    (
        "daf",
        {**ALIGNED, "network": "ConvNeXt V2", "rule": "mean", "head": "ridge", "head_width": 8},
    ),
    ("ease", STAGED_ADAPTER),
    ("tuna", {**ALIGNED, "network": "Swin"}),
    ("lift", {**STAGED_ADAPTER, "tune": "each", "tune_tasks": 2}),
    ("lift", {"network": "ResNet"}),
    ("layup", {"network": "EfficientNet"}),
    ("finetune", {**EPOCHS, "network": "ResNet", "local_ce": False}),
]
NAMES = [f"{name}-{'-'.join(str(v) for v in o.values())}" for name, o in VARIANTS]
COUNTS = [6, 5, 6, 1, 4, 5]  # training images of each class: unequal, and a class of one image
SIZES = [2, 3, 1]  # unequal tasks with a remainder of one class

every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=NAMES)
every_method = pytest.mark.parametrize(("name", "options"), QUICK.items(), ids=QUICK)


def make(name: str, options: dict[str, Any], sizes: list[int] = SIZES) -> tuple:
    options = dict(options)
    family = options.pop("network", None)
    dataset = small_dataset(COUNTS)
    trainer = small_trainer(dataset, network=family and small_network(family))
    return METHODS[name](trainer=trainer, **options), small_stream(dataset, sizes), trainer


@cache
def _learned(number: int) -> tuple[Any, Stream, Trainer]:
    method, stream, trainer = make(*VARIANTS[number])
    method.learn(stream[0])
    method.learn(stream[1])
    return method, stream, trainer


def learned(name: str, options: dict[str, Any]) -> tuple[Any, Stream, Trainer]:
    """The variant after two tasks, for the tests that ask it and do not change it."""
    return _learned(VARIANTS.index((name, options)))


def predict(method: Method, trainer: Trainer, stream: Stream, until: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(
            [
                method.logits(images)
                for test in stream.tests_until(stream[until])
                for images, _ in trainer.batches(test)
            ]
        )


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_every_method_is_in_the_suite() -> None:
    assert QUICK.keys() == METHODS.keys()


@every_variant
def test_learns_a_stream_and_stays_finite(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = make(name, options)
    for task in stream:
        method.learn(task)
        logits = predict(method, trainer, stream, task.index)
        assert logits.shape == (4 * task.seen, task.seen)
        assert logits.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in method.state().values())


@every_method
def test_one_class_per_task_is_learned_or_refused(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = make(name, options, [1] * len(COUNTS))
    if method.least_classes > 1:
        with pytest.raises(DafuseError, match=f"{name} needs at least two classes in each task"):
            method.require_learnable(stream.sizes)
        return
    method.require_learnable(stream.sizes)
    for task in stream:
        method.learn(task)
    assert predict(method, trainer, stream, len(COUNTS) - 1).isfinite().all()


def test_only_a_loss_over_own_classes_alone_needs_two_of_them() -> None:
    needs_two = {
        name for name, options in QUICK.items() if make(name, options)[0].least_classes > 1
    }
    assert needs_two == {"finetune", "l2p", "dualprompt", "coda"}
    method, _, _ = make("finetune", {**EPOCHS, "local_ce": False})
    method.require_learnable([1, 1])


@every_variant
def test_saved_and_loaded_predicts_identically(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = learned(name, options)
    other, other_stream, other_trainer = make(name, options)
    other.load_state({k: v.clone() for k, v in method.state().items()})
    assert torch.equal(
        predict(method, trainer, stream, 1), predict(other, other_trainer, other_stream, 1)
    )
    assert same(method.state(), other.state())


@every_variant
def test_resumed_after_a_task_equals_never_stopped(name: str, options: dict[str, Any]) -> None:
    whole, stream, _ = make(name, options)
    for task in stream:
        whole.learn(task)
    first, stream, _ = make(name, options)
    first.learn(stream[0])
    resumed, stream, _ = make(name, options)
    resumed.load_state({k: v.clone() for k, v in first.state().items()})
    for task in list(stream)[1:]:
        resumed.learn(task)
    assert same(whole.state(), resumed.state())


@every_method
def test_the_same_seed_repeats_and_another_does_not(name: str, options: dict[str, Any]) -> None:
    states = []
    for seed in (7, 7, 8):
        dataset = small_dataset(COUNTS)
        method = METHODS[name](trainer=small_trainer(dataset, seed), **options)
        method.learn(small_stream(dataset, SIZES)[0])
        states.append(method.state())
    assert same(states[0], states[1])
    if options:  # a method that trains
        assert not same(states[0], states[2])


@every_variant
def test_inference_changes_nothing(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = learned(name, options)
    before = {k: v.clone() for k, v in method.state().items()}
    backbone = {k: v.clone() for k, v in trainer.network.state_dict().items()}
    generator = torch.get_rng_state()
    first = predict(method, trainer, stream, 1)
    assert torch.equal(first, predict(method, trainer, stream, 1))
    assert same(before, method.state())
    assert same(backbone, trainer.network.state_dict())
    assert torch.equal(generator, torch.get_rng_state())


@every_variant
def test_predictions_do_not_depend_on_the_batch(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = learned(name, options)
    images = torch.cat(
        [x for test in stream.tests_until(stream[1]) for x, _ in trainer.batches(test)]
    )
    with torch.no_grad():
        together = method.logits(images)
        alone = torch.cat([method.logits(image[None]) for image in images])
        shuffled = method.logits(images.flip(0)).flip(0)
    assert torch.allclose(together, alone, atol=1e-4)
    assert torch.allclose(together, shuffled, atol=1e-4)


@every_variant
def test_learning_leaves_the_backbone_alone(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = make(name, options)
    before = {k: v.clone() for k, v in trainer.network.state_dict().items()}
    for task in stream:
        method.learn(task)
    assert same(before, trainer.network.state_dict())


@every_method
def test_what_is_kept_is_counted_and_declared(name: str, options: dict[str, Any]) -> None:
    """Modules stay of one size unless the method needs one a task; images only where it says so."""
    method, stream, trainer = make(name, options, [2, 2, 2])
    kept = []
    for task in stream:
        method.learn(task)
        kept.append(trainer.kept_bytes(method))
        total = sum(t.numel() * t.element_size() for t in method.state().values())
        pixels = trainer.loader.pixel_bytes(method.exemplars()) if method.keeps_images else 0
        assert sum(kept[-1].values()) == total + pixels
    assert kept[-1].keys() <= {"modules", "statistics", "classifier", "exemplars"}
    assert method.keeps_images == ("exemplars" in kept[-1])
    assert method.grows == (kept[2].get("modules", 0) > kept[1].get("modules", 0))


def first_of_blocks(network: Network) -> torch.nn.Module:
    """A module that every image passes once in each pass through the network."""
    model = network.timm
    if isinstance(network, ViT):
        return model.blocks[0].norm1
    if isinstance(network, Staged):
        stages = getattr(model, "stages", None) or model.layers
        return stages[0].blocks[0].norm1 if hasattr(model, "layers") else stages[0].blocks[0]
    return model.conv1 if hasattr(model, "conv1") else model.conv_stem


@every_variant
def test_passes_are_as_declared(name: str, options: dict[str, Any]) -> None:
    """Counted: how often an image enters the first block of any network the method has."""
    method, stream, trainer = make(name, options, [2, 2, 2])
    entered: list[int] = []
    held = [one for one in vars(method).values() if isinstance(one, Network)]
    for network in {id(network): network for network in [trainer.network, *held]}.values():
        first = first_of_blocks(network)
        first.register_forward_pre_hook(lambda _, inputs: entered.append(len(inputs[0])))
    for task in stream:
        method.learn(task)
        ((images, _),) = trainer.batches(task.test)
        entered.clear()
        with torch.no_grad():
            method.logits(images)
        assert sum(entered) == len(images) * method.passes(task.number, options)


@every_variant
def test_the_first_prediction_is_that_of_logits(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = learned(name, options)
    ((images, _),) = trainer.batches(stream[1].test)
    with torch.no_grad():
        predictions = method.predictions(images)
        assert torch.equal(next(iter(predictions.values())), method.logits(images))
        for scores in predictions.values():
            assert scores.shape == (len(images), 5)
            assert scores.isfinite().all()


# options with which order must not matter: nothing is chosen by the images of a task
EXACT: dict[str, Any] = {"penalty": 0.1, "precision": "float64"}
OBSERVERS: list[tuple[str, dict[str, Any]]] = [
    ("simplecil", {}),
    ("lift", {**EXACT, "width": 16}),
    ("lift", {**EXACT, "features": "last", "head": "lda"}),
    ("layup", {"blocks": 2, "penalty": 1.0}),
    ("klda", {"width": 24, "penalty": 1e-3, "precision": "float64"}),
    ("anacp", {"width": 24, "samples": 10, "penalty": 1.0, "precision": "float64"}),
]
every_observer = pytest.mark.parametrize(("name", "options"), OBSERVERS)


def test_every_observer_is_in_the_suite() -> None:
    assert {name for name, _ in OBSERVERS} == {n for n, m in METHODS.items() if m.observes}


def untempered(logits: torch.Tensor) -> torch.Tensor:
    """Return logits without their temperature, which images of a task may have chosen."""
    return logits / logits.std()


def in_batches(
    name: str, options: dict[str, Any], order: list[int], sizes: list[int]
) -> tuple[Method, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A new method, and the training images in this order, in batches of these sizes."""
    method, stream, trainer = make(name, options)
    images = ImageSet.join([task.train for task in stream]).take(np.array(order))
    ((pixels, labels),) = trainer.batches(images)
    return method, list(zip(pixels.split(sizes), labels.split(sizes), strict=True))


# rows of the 27 training images: classes have 6, 5, 6, 1, 4 and 5 of them
CLASS_BY_CLASS = list(range(27))
COMING_BACK = [0, 6, 1, 11, 17, 12, 18, 7, 22, *range(23, 27), *range(19, 22)]
COMING_BACK += [*range(13, 17), *range(8, 11), *range(2, 6)]
SKIPPING_AHEAD = [0, 6, 11, 22, 17, 18]  # labels 0, 1, 2, then 5, 3, 4 in one batch
SKIPPING_AHEAD += sorted(set(range(27)) - set(SKIPPING_AHEAD))


@pytest.mark.parametrize(
    ("order", "sizes"),
    [
        (CLASS_BY_CLASS, [10, 10, 7]),
        (CLASS_BY_CLASS, [27]),
        (COMING_BACK, [1] * 27),
        (COMING_BACK, [5, 1, 12, 9]),
        (SKIPPING_AHEAD, [3, 3, 1, 20]),
    ],
)
@every_observer
def test_observed_in_any_batches_it_predicts_as_after_tasks(
    name: str, options: dict[str, Any], order: list[int], sizes: list[int]
) -> None:
    learned, stream, trainer = make(name, options)
    for task in stream:
        learned.learn(task)
    observer, batches = in_batches(name, options, order, sizes)
    seen = 0
    for images, labels in batches:
        observer.observe(images, labels)
        seen = max(seen, int(labels.max()) + 1)
        with torch.no_grad():
            assert observer.logits(images).shape == (len(images), seen)
            assert observer.logits(images).isfinite().all()
    after_tasks = untempered(predict(learned, trainer, stream, 2))
    observed = untempered(predict(observer, trainer, stream, 2))
    assert torch.allclose(observed, after_tasks, atol=1e-5)


@every_observer
def test_observing_resumed_in_midstream_equals_never_stopped(
    name: str, options: dict[str, Any]
) -> None:
    whole, batches = in_batches(name, options, COMING_BACK, [4] * 6 + [3])
    first, *_ = make(name, options)
    resumed, *_ = make(name, options)
    for number, (images, labels) in enumerate(batches):
        whole.observe(images, labels)
        (first if number < 3 else resumed).observe(images, labels)
        if number == 2:
            whole.state()  # as a run that is not stopped here asks for it, too
            resumed.load_state({k: v.clone() for k, v in first.state().items()})
    assert same(whole.state(), resumed.state())


@every_method
def test_what_does_not_observe_refuses_with_a_sentence(name: str, options: dict[str, Any]) -> None:
    method, stream, trainer = make(name, options)
    if method.observes:
        require_observes(name, "online")
        return
    with pytest.raises(DafuseError, match=rf"^{name} learns task by task .* can: .*simplecil"):
        require_observes(name, "online")
    ((images, labels),) = trainer.batches(stream[0].test)
    with pytest.raises(TypeError, match=type(method).__name__):
        method.observe(images, labels)


@every_method
def test_declares_what_a_user_must_know(name: str, options: dict[str, Any]) -> None:
    method, *_ = make(name, options)
    assert method.name == name
    assert method.summary
    assert method.keeps
    assert method.assumes
    assert method.paper.startswith("https://")
    options_documented = {f.name for f in fields(method)} - {"trainer"}
    for option in options_documented:
        assert f" {option}: " in method_docs(type(method)), option


def method_docs(cls: type) -> str:
    """The docstrings of a method and of the method it derives from."""
    return " ".join(base.__doc__ or "" for base in cls.__mro__ if issubclass(base, Method))


@pytest.mark.parametrize("name", ["mos", "tuna"])
def test_an_option_out_of_range_is_refused_whichever_method_has_it(name: str) -> None:
    with pytest.raises(DafuseError, match=r"method.orth must be at least 0, not -1"):
        make(name, {"orth": -1.0})

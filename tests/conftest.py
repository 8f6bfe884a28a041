"""Shared by the tests: a small world that learns in a second, and where real weights may lie."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import settings
from torch import nn

from dafuse.backbones.network import Network
from dafuse.backbones.vit import ViT
from dafuse.data.arrays import arrays
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset
from dafuse.data.preprocessing import Preprocessing
from dafuse.data.stream import Stream, Task
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.methods.contract import Method
from dafuse.taught.torch_eye import TorchExtractor

# weights and data that are not ours to ship, where somebody has put them beside the repository
SHARED = Path(__file__).resolve().parents[2] / "shared"
settings.register_profile("dafuse", deadline=None)  # a busy machine is not a failure
settings.load_profile("dafuse")
torch.set_num_threads(1)  # small tensors: more threads only wait for each other
PREPROCESSING = Preprocessing(size=32, mean=(0.5,) * 3, std=(0.5,) * 3, resize=36)

# a process that kills itself, for good, at the count-th call of a function
SUICIDE = """
import importlib, os, signal, sys
module, path, count = sys.argv[1], sys.argv[2].split("."), int(sys.argv[3])
owner = importlib.import_module(module)
for name in path[:-1]:
    owner = getattr(owner, name)
original, calls = getattr(owner, path[-1]), 0
def counted(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, path[-1], counted)
from dafuse.cli import main
main(sys.argv[4:])
"""

# what dafuse depends on beside numpy and Pillow; extras, too, but for onnxruntime and the server's
HEAVY = ["torch", "torchvision", "timm", "lightning_fabric", "jsonargparse", "rich", "yaml"]
HEAVY += ["matplotlib", "onnx", "onnxscript", "sklearn", "scipy"]


def save_arrays(dataset: Dataset, file: Path) -> None:
    """As the .npz file that `--data` takes."""
    np.savez(
        file,
        train_images=dataset.train.items,
        train_labels=dataset.train.labels,
        test_images=dataset.test.items,
        test_labels=dataset.test.labels,
    )


def dafuse_without(*modules: str) -> list[str]:
    """The command dafuse where these cannot be imported."""
    code = f"""
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
from dafuse.cli import main
main(sys.argv[1:])
"""
    return [sys.executable, "-c", code]


@pytest.fixture(autouse=True)
def _same_for_every_test(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for name in ("DAFUSE_WEIGHTS", "DAFUSE_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classifiers are made with the small network, whichever they ask for."""

    def load(
        backbone: str,
        weights: str | None = None,
        sha256: str | None = None,
        *_: object,
        **__: object,
    ) -> TorchExtractor:
        vit = small_vit()
        vit.sha256 = sha256 or "0" * 64
        return TorchExtractor(vit, "cpu")

    monkeypatch.setattr("dafuse.product.classifier.open_eye", load)


def small_timm(depth: int = 3, **arguments: Any) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=depth,
        num_heads=3,
        num_classes=0,
        **arguments,
    )


def small_vit(seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    model = small_timm()
    for parameter in model.parameters():  # far from the near-identity of a new network
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return ViT(model, PREPROCESSING, "small")


def small_dataset(counts: list[int], test_count: int = 4, seed: int = 0) -> Dataset:
    """Classes told apart by colour and a bar's place; ``counts`` training images of each."""
    rng = np.random.default_rng(seed)

    def images(label: int, count: int) -> np.ndarray:
        base = np.random.default_rng(1000 + label).integers(0, 256, 3)
        out = np.clip(base + rng.normal(0, 40, (count, 24, 24, 3)), 0, 255)
        out[:, label % 24] = 255 - base
        return out.astype(np.uint8)

    def split(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        pixels = np.concatenate([images(label, count) for label, count in enumerate(counts)])
        return pixels, np.repeat(np.arange(len(counts)), counts)

    test = split([test_count] * len(counts))
    classes = [f"class {i}" for i in range(len(counts))]
    return arrays(*split(counts), *test, classes=classes, name="small")


def small_trainer(
    dataset: Dataset,
    seed: int = 7,
    compiled: bool = False,
    device: str = "cpu",
    network: Network | None = None,
) -> Trainer:
    network = network or small_vit()
    fabric = launch(device, "fp32", deterministic=False)
    loader = Loader(dataset, network.preprocessing, fabric.device)
    return Trainer(network, loader, fabric, seed, compiled=compiled)


def small_stream(dataset: Dataset, sizes: list[int]) -> Stream:
    return Stream(dataset, range(len(dataset.classes)), sizes)


def small_learned(
    method_class: type[Method], sizes: list[int], tasks: int | None = None, **options: Any
) -> tuple[Any, Trainer, Stream]:
    """A method that has learned a stream of tasks of these sizes, or the first few of them."""
    dataset = small_dataset([5] * sum(sizes))
    trainer, stream = small_trainer(dataset), small_stream(dataset, sizes)
    method = method_class(trainer=trainer, **options)
    for task in list(stream)[:tasks]:
        method.learn(task)
    return method, trainer, stream


def loss_at_the_start(
    method: Method, task: Task, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, list[torch.Tensor]]:
    """The loss of a task's images before its first step, and what would be trained, and is not.

    The last tensor, the new rows, is moved first: at their start all classes are nearly the same.
    """
    trainer, asked = method.trainer, {}

    def fit(task: Task, attached: Any, loss: Any, groups: Any, schedule: Any) -> None:
        trained = [tensor for group in groups for tensor in group.parameters]
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            trained[-1].add_(torch.randn(trained[-1].shape, generator=generator))
            ((images, labels),) = trainer.batches(task.train)
            asked["loss"] = loss(images, labels).item()
        asked["trained"] = [tensor.detach().clone() for tensor in trained]

    monkeypatch.setattr(trainer, "fit", fit)
    method.learn(task)
    return asked["loss"], asked["trained"]


def prompts_chosen(method: Method, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The prompts with which the method predicts these images."""
    encode, given = method.trainer.encode, []

    def spy(*arguments: Any, prompts: Any = None) -> torch.Tensor:
        given.append(prompts)
        return encode(*arguments, prompts=prompts)

    with monkeypatch.context() as patch:
        patch.setattr(method.trainer, "encode", spy)
        method.logits(images)
    return given[-1]  # the query before it has none


def cross_entropy_by_hand(
    feats: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, first: int
) -> float:
    """Over the classes of these rows alone, the last number of each its bias, from ``first`` on."""
    terms = []
    for feat, label in zip(feats.double(), labels.tolist(), strict=True):
        scores = torch.stack([feat @ row[:-1] + row[-1] for row in rows.double()])
        terms.append(scores.exp().sum().log() - scores[label - first])
    return torch.stack(terms).mean().item()


def clean_environment(**extra: str) -> dict[str, str]:
    """For subprocesses: few threads, nothing of the caller's weights and data."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("DAFUSE_")}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"} | extra

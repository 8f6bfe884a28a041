"""Fixtures of all tests: the same start for each, a small network, a plug-in for images."""

import gc
import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

# Small arrays: more threads only wait for each other. Read when numpy is imported, here and below.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings
from onnx import ModelProto
from PIL import Image

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.depths import Depths
from dafuse.data.formats import load_plugins, readable_suffixes
from dafuse.taught.torch_extractor import TorchExtractor
from helpers.image_plug_ins import PLUGIN
from helpers.small_networks import small_vit

settings.register_profile("dafuse", deadline=None)  # a busy machine is not a failure
settings.load_profile("dafuse")
torch.set_num_threads(1)
gc.set_threshold(50_000)  # the usual 700 looks again and again through the millions of an export


LONGEST = (  # files that take long are begun first, so that no process ends long after others
    "tests/test_cli.py",
    "tests/methods/test_floors.py",
    "tests/benchmarks/test_bench.py",
    "tests/backbones/test_families.py",
    "tests/backbones/test_prompts.py",
    "tests/engine/test_run.py",
    "tests/taught/test_contract.py",
    "tests/benchmarks/test_plain_loop.py",
    "tests/experiments/test_experiment.py",
    "tests/experiments/test_measurement.py",
    "tests/project/test_wheel.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


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

    monkeypatch.setattr("dafuse.product.classifier.open_extractor", load)


@pytest.fixture(scope="module")
def traced_once() -> Iterator[None]:
    """Trace each torch network once for all exports of a file's tests: a trace takes seconds."""
    traced, made = TorchExtractor.graph, {}

    def graph(eye: TorchExtractor, depths: Depths, attached: Adapter | None = None) -> ModelProto:
        modules = (eye.network, attached) if attached is not None else (eye.network,)
        values = [value for module in modules for value in module.state_dict().values()]
        key = (depths, *(value.numpy().tobytes() for value in values))
        if key not in made:
            made[key] = traced(eye, depths, attached)
        return deepcopy(made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchExtractor, "graph", graph)
        yield


@pytest.fixture
def heif_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something that does for Pillow what pillow-heif does, if only in one colour."""
    (tmp_path / "plug-ins").mkdir()
    (tmp_path / "plug-ins" / "pillow_heif.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path / "plug-ins"))
    _forget_plugins()
    yield
    monkeypatch.undo()
    sys.modules.pop("pillow_heif", None)
    _forget_plugins()
    Image.OPEN.pop("HEIF", None)
    Image.ID[:] = [name for name in Image.ID if name != "HEIF"]


def _forget_plugins() -> None:
    load_plugins.cache_clear()
    readable_suffixes.cache_clear()

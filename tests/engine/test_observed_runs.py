"""Runs of streams without tasks: refusals, exact resume, and runs in tasks left as they were."""

import json
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from dafuse.backbones.registry import COMPACT_V1
from dafuse.data.batches import Loader
from dafuse.engine.config import NUMBERS, STREAM_OPTIONS, RunConfig
from dafuse.engine.devices import launch
from dafuse.engine.run import Bench, resolved, run
from dafuse.errors import DafuseError
from dafuse.report.page import page
from dafuse.report.runs import load_run
from dafuse.sealed import read_sealed
from helpers.processes import dafuse
from helpers.small_datasets import save_arrays, small_dataset
from helpers.small_networks import PREPROCESSING, small_vit

COUNTS = [9, 5, 7, 1, 6, 8]
BASE = RunConfig(method={"name": "simplecil"}, increment=2, device="cpu")


@pytest.fixture(scope="module")
def bench() -> Bench:
    fabric = launch("cpu", "fp32", deterministic=False)
    return Bench(fabric, small_vit(), Loader(small_dataset(COUNTS), PREPROCESSING, fabric.device))


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_sealed(folder / "results.json", "")
    for task in found["tasks"]:
        del task["seconds"]
    return found


@pytest.mark.parametrize("stream", ["online", "blurry", "repeated"])
def test_a_stream_without_tasks_runs_to_a_report(bench: Bench, stream: str, tmp_path: Path) -> None:
    more = {"blurry_share": 0.5} if stream == "blurry" else {}
    config = replace(BASE, stream=stream, points=7, out=str(tmp_path / "run"), **more)
    folder = run(config, bench=bench)
    found = results(folder)
    assert found["status"] == "finished"
    assert found["tasks_total"] == 7
    assert 0 in found["task_sizes"]  # more points than classes
    assert sum(task["images"]["observe"] for task in found["tasks"]) == sum(COUNTS)
    assert sum(found["total"][-1]) == 4 * len(COUNTS)
    loaded = load_run(folder)
    assert loaded.matrix.metrics()["average"] == pytest.approx(np.mean(loaded.curve))
    assert f"simplecil ({stream})" in page([loaded])


def test_every_stream_ends_where_the_tasks_end(bench: Bench, tmp_path: Path) -> None:
    """SimpleCIL's class means do not depend on how their images came."""
    kinds = ("tasks", "online", "blurry", "repeated")
    runs = [run(replace(BASE, stream=k, out=str(tmp_path / k)), bench=bench) for k in kinds]
    ends = {sum(results(folder)["correct"][-1]) for folder in runs}
    assert len(ends) == 1


def test_batches_are_of_the_size_asked_for_and_not_padded(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def observe(self: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
        full = self.trainer.forward.full_batch
        seen.append((len(images), full))
        original(self, images, labels)

    from dafuse.methods.simplecil import SimpleCIL

    original = SimpleCIL.observe
    monkeypatch.setattr(SimpleCIL, "observe", observe)
    monkeypatch.setattr("dafuse.engine.forward.compiled", lambda network: network)
    config = replace(BASE, stream="online", observed_batch=4, compiled=True, increment=3)
    run(replace(config, out=str(tmp_path / "run")), bench=bench)
    assert {full for _, full in seen} == {4}
    sizes = [size for size, _ in seen]
    assert sum(sizes) == sum(COUNTS)
    assert sum(size < 4 for size in sizes) <= 2  # the last of each segment


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(DafuseError, match=match):
            run(replace(BASE, out=str(tmp_path / "run"), **changes))
        assert not (tmp_path / "run").exists()

    refused("^daf learns task by task .* methods that can: .*simplecil", stream="online",
            method={"name": "daf"})  # fmt: skip
    refused("no stream is called 'sometimes'", stream="sometimes")
    refused("blurry_share is not for --stream online, but for blurry", stream="online",
            blurry_share=0.3)  # fmt: skip
    refused("points is not for --stream tasks", points=3)
    refused(
        "disjoint_share must be at least 0 and at most 1, not 1.5",
        stream="blurry",
        disjoint_share=1.5,
    )
    refused("visits must be at least 2 and", stream="repeated", visits=1)
    refused("observed_batch must be at least 1", stream="online", observed_batch=0)
    refused("points must be at least 1", stream="online", points=0)
    refused("points must be a whole number or null, not True", stream="online", points=True)
    refused("seed must be at least 0 and at most 4294967295, not -1", seed=-1)
    refused("workers must be at least 0 and at most 4096, not 5000", workers=5000)
    refused("memory_gb must be a number or null, not 'much'", memory_gb="much")


def test_runs_in_tasks_keep_their_hash_and_their_folder(bench: Bench, tmp_path: Path) -> None:
    """Both are as before there were other streams: what was begun then is gone on with."""
    assert RunConfig(backbone=COMPACT_V1).hash() == HASH_BEFORE  # the default has changed
    config = resolved(replace(BASE, out=str(tmp_path / "run")))
    later = ("stream", *STREAM_OPTIONS, "devices", "nodes")
    before = {k: v for k, v in asdict(config).items() if k not in later}
    assert config.asked() == before
    folder = run(config, bench=bench)
    assert json.loads((folder / "config.json").read_text())["config"] == before
    with pytest.raises(DafuseError) as refusal:
        run(replace(config, stream="online"), bench=bench)
    assert "stream was None, now 'online'" in str(refusal.value)


HASH_BEFORE = "dcfa5b49aa0e9d40e51478d98b6c6dbf993e9c97d144ef8c4f94274b199bd4de"


def test_options_of_other_streams_do_not_count() -> None:
    online = replace(BASE, stream="online")
    assert online.hash() != BASE.hash()
    assert online.hash() == replace(online, visits=5).hash()
    assert online.hash() != replace(online, observed_batch=5).hash()


def test_every_number_of_a_run_has_its_range_on_its_field() -> None:
    hints = get_type_hints(RunConfig, include_extras=True)
    assert {name for name, hint in hints.items() if get_origin(hint) is Annotated} == set(NUMBERS)


WRITING = ("os", "replace", 7)  # between a checkpoint's tensors and its record
OBSERVING = {
    "simplecil": ("dafuse.methods.simplecil", "SimpleCIL.observe", 7),
    "lift": ("dafuse.methods.lift", "LIFT.observe", 7),
}


@pytest.mark.parametrize("method", OBSERVING)
def test_killed_in_a_stream_it_resumes_bit_identically(method: str, tmp_path: Path) -> None:
    file, dataset = tmp_path / "small.npz", small_dataset(COUNTS)
    save_arrays(dataset, file)

    def command(out: Path) -> list[str]:
        shared = ["run", "--data", str(file), "--method", method, "--device", "cpu"]
        return [*shared, "--stream=repeated", "--points=4", "--observed_batch=3", f"--out={out}"]

    def outcome(out: Path) -> tuple[bytes, dict[str, Any]]:
        (tensors,) = (out / "checkpoints").glob("*.safetensors")
        return tensors.read_bytes(), results(out)

    whole = tmp_path / "whole"
    done = dafuse(*command(whole))
    assert done.status == 0, done.err
    for number, point in enumerate([OBSERVING[method], WRITING]):
        out = tmp_path / str(number)
        killed = dafuse(*command(out), at=point)
        assert killed.status == -signal.SIGKILL, killed.err
        done = dafuse(*command(out))
        assert done.status == 0, done.err
        assert "going on with point" in done.err
        assert outcome(out) == outcome(whole)

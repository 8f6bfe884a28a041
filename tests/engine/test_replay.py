"""Record once, replay many: a replayed run ends with the bits of a full one."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dafuse.engine import trainer
from dafuse.engine.config import RunConfig
from dafuse.engine.devices import launch
from dafuse.engine.ranks import Ranks
from dafuse.engine.replay import Recording
from dafuse.engine.run import Bench, prepare, run
from dafuse.errors import DafuseError
from dafuse.files import read_json
from helpers.small_datasets import save_arrays, small_dataset

METHOD = {"name": "daf", "epochs": 1, "batch_size": 8, "align_epochs": 2, "align_samples": 8}
OTHER_WAYS: dict[str, dict[str, Any]] = {
    "alpha": {"alpha": 3.0},
    "rule": {"rule": "static"},
    "scope": {"fisher_scope": "layer", "gamma": 0.3, "use_gradient": False},
    "paper": {"name": "daf-paper", "memory": "diagonal"},
    "retrieval": {"name": "daf-retrieval", "align_lr": 0.01},
    "head": {"head": "ridge", "head_width": 6},
    "another Fisher": {"fisher": "per_batch"},  # not recorded: measured at the recorded adapter
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    dataset, file = small_dataset([4] * 6), tmp_path_factory.mktemp("data") / "small.npz"
    save_arrays(dataset, file)
    data = {"name": "arrays", "file": str(file)}
    return RunConfig(method=METHOD, data=data, increment=2, device="cpu")


@pytest.fixture(scope="module")
def bench(base: RunConfig) -> Bench:
    return prepare(base)


@pytest.fixture(scope="module")
def recorded(base: RunConfig, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    return run(replace(base, record=True, out=str(folder)), bench=bench)


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    (checkpoint,) = (folder / "checkpoints").glob("*.safetensors")
    results = read_json(folder / "results.json")
    return load_file(checkpoint), {
        "correct": results["correct"],
        "confusion": results["confusion"],
        "diagnosis": [task["diagnosis"] for task in results["tasks"]],
    }


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_replayed_run_equals_a_full_one(
    way: str,
    base: RunConfig,
    bench: Bench,
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(base, method=METHOD | OTHER_WAYS[way])
    full_state, full = outcome(run(replace(config, out=str(tmp_path / "full")), bench=bench))

    def no_training(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a replayed run trained")

    monkeypatch.setattr(trainer.Trainer, "fit", no_training)
    replayed = replace(config, replay=str(recorded), out=str(tmp_path / "replayed"))
    assert replayed.hash() == config.hash()  # the same run, only sooner
    state, found = outcome(run(replayed, bench=bench))
    assert found == full
    assert state.keys() == full_state.keys()
    assert all(torch.equal(state[key], full_state[key]) for key in state)


def test_what_would_train_otherwise_is_refused(
    base: RunConfig, bench: Bench, recorded: Path
) -> None:
    for change in ({"lr": 0.5}, {"init": "random"}, {"epochs": 2}):
        other = replace(base, method=METHOD | change, replay=str(recorded), out=None)
        with pytest.raises(DafuseError, match=f"trained differently.*method.{next(iter(change))}"):
            run(replace(other, out=str(recorded.parent / "other")), bench=bench)
    with pytest.raises(DafuseError, match=r"trained differently.*seed 1993, now 7"):
        run(replace(base, seed=7, replay=str(recorded), out=str(recorded.parent / "seed")))
    assert not (recorded.parent / "other").exists()


def test_bad_records_are_named(
    base: RunConfig, bench: Bench, recorded: Path, tmp_path: Path
) -> None:
    without = replace(base, replay=str(tmp_path), out=str(tmp_path / "a"))
    with pytest.raises(DafuseError, match="has no record"):
        run(without, bench=bench)
    other = replace(base, method={"name": "simplecil"}, record=True, out=str(tmp_path / "b"))
    with pytest.raises(DafuseError, match="simplecil does not record"):
        run(other, bench=bench)
    damaged = tmp_path / "damaged"
    (damaged / "record").mkdir(parents=True)
    for file in ("config.json", "provenance.json"):
        (damaged / file).write_bytes((recorded / file).read_bytes())
    (damaged / "record" / "training-0001.safetensors").write_bytes(b"short")
    with pytest.raises(DafuseError, match=r"training-0001.safetensors is damaged"):
        run(replace(base, replay=str(damaged), out=str(tmp_path / "c")), bench=bench)


def test_a_changed_bit_of_a_record_is_refused(tmp_path: Path) -> None:
    ranks = Ranks(launch("cpu", "fp32", deterministic=False))
    tensors = {"b": torch.randn(3, 5), "a": torch.arange(4), "half": torch.ones(2).bfloat16()}
    Recording(None, tmp_path, ranks).kept("training", 0, lambda: tensors)
    (file,) = tmp_path.iterdir()
    data, record = file.read_bytes(), Recording(tmp_path, None, ranks)

    def read() -> dict[str, torch.Tensor]:
        return record.kept("training", 0, lambda: pytest.fail("the record was not read"))

    assert list(read()) == list(tensors)
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = tensors
        with suppress(DafuseError):
            found = read()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(DafuseError, match=f"{file} is damaged: its tensors do not match"):
        read()

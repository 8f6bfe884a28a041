"""DAF's approximations measured at a recorded run: the right numbers, once, and told if missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.cli import start
from dafuse.commands import experiment
from dafuse.commands.run import parse
from dafuse.engine.run import Bench, make_stream, prepare
from dafuse.errors import DafuseError
from dafuse.experiments import measurement
from dafuse.experiments.declared import EXPERIMENTS, Experiment, MeasureOptions
from dafuse.experiments.measurement import spread_tasks
from dafuse.files import read_json
from dafuse.heads.cosine import cosine_logits
from dafuse.progress import Progress
from dafuse.report.measured_approximations import MeasuredTask
from helpers.small_datasets import small_dataset

TINY = Experiment("a test", ({"name": "daf"},), measures=True)
TRAINED = ["--method.epochs=2", "--method.batch_size=8", "--method.lr=0.1"]
MEASURED = ["--measure-probes=1", "--measure-coordinates=1"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small data in three tasks, and a folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # so that the terminal breaks no line
    dataset = small_dataset([4] * 6)
    splits = {"train": dataset.train, "test": dataset.test}
    contents: dict[str, Any] = {f"{k}_images": part.items for k, part in splits.items()}
    contents |= {f"{k}_labels": part.labels for k, part in splits.items()}
    np.savez("small.npz", **contents)
    monkeypatch.setitem(EXPERIMENTS, "tiny", TINY)
    common = ["--data", "small.npz", "--increment", "2", "--device", "cpu"]
    return [*common, *TRAINED, "--method.align_epochs=1", *MEASURED]


def test_the_numbers_are_those_of_the_record(
    world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start("experiment", ["tiny", "--dry-run", *world])
    assert "measures daf-arrays-seed1993" in capsys.readouterr().out
    start("experiment", ["tiny", *world])
    told = capsys.readouterr().out
    assert "missing" not in told
    assert "Fisher for Hessian (exact)" in told
    found = read_json(_run() / "approximations.json")
    assert found["planned"] == [task["task"] for task in found["tasks"]] == [1, 2]
    for task in found["tasks"]:
        record = load_file(_run() / "record" / f"per_sample-{task['task'] + 1:04d}.safetensors")
        for name, values in task["sampled"]["fisher"].items():  # all images: the recorded Fisher
            everything = record[f"fisher.{name}"].flatten().tolist()
            assert all(any(abs(v - e) <= 1e-5 * e for e in everything) for v in values), name
        path = task["path"]
        assert path["true"][0] == pytest.approx(float(record["loss"]), rel=1e-5)
        assert all(path[model][0] == path["true"][0] for model in path if model != "shares")
        # near the start any model but the rule's is the loss, as they share the slope
        moved = path["true"][1] - path["true"][0]
        assert path["hessian"][1] - path["hessian"][0] == pytest.approx(moved, rel=0.3)
        assert task["agreement"]["batch_sample"]["all"]["ratio_of_sums"] < 1
    assert found["tasks"][1]["path"]["true"][-1] == pytest.approx(_loss_at_the_end(), rel=1e-5)


def _run() -> Path:
    """The folder of the only run."""
    (folder,) = Path("runs").glob("daf-*")
    return folder


def _loss_at_the_end() -> float:
    """Return the last task's loss, under its own head and the checkpoint's global adapter."""
    config = parse(["--data", "small.npz", "--increment", "2", "--device", "cpu"])
    bench = prepare(config)
    (checkpoint,) = (_run() / "checkpoints").glob("*.safetensors")
    state = load_file(checkpoint)
    prefix = "modules/global."
    tensors = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    adapter = Adapter(bench.network.depth, bench.network.width).set(tensors).eval()
    head = load_file(_run() / "record" / "training-0003.safetensors")["head"]
    task = make_stream(config, bench.loader.dataset)[2]
    ((images, labels),) = bench.loader.test_batches(task.train, 100)
    with torch.no_grad():
        logits = cosine_logits(bench.network(images, adapter), head)
    return float(F.cross_entropy(logits, labels - task.first))


def test_goes_on_where_it_stopped_and_is_reused(
    world: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    real = measurement.measure_task

    def one_only(*arguments: Any) -> MeasuredTask:
        measured.append(arguments[1].index)
        if len(measured) == 2:
            raise RuntimeError("no luck")
        return real(*arguments)

    monkeypatch.setattr(measurement, "measure_task", one_only)
    with pytest.raises(DafuseError, match=r"1 of 2 runs and measurements failed: .*no luck"):
        start("experiment", ["tiny", *world])
    told = capsys.readouterr().out
    assert "missing: measurement, seed 1993" in told
    assert "Missing: 1 of 2 tasks" in told
    assert "Missing: 1 of 2 tasks" in Path("runs/tiny-arrays.html").read_text()
    start("experiment", ["tiny", "--dry-run", *world])
    assert "1 of 2 tasks" in capsys.readouterr().out
    for drawing in ("show_results", "write_outputs"):  # which takes a while
        monkeypatch.setattr(experiment, drawing, lambda *_, **__: [])
    first = read_json(_run() / "approximations.json")["tasks"]
    start("experiment", ["tiny", *world])
    start("experiment", ["tiny", *world])  # finished: nothing to do
    assert measured == [1, 2, 2]
    assert read_json(_run() / "approximations.json")["tasks"][:1] == first
    start("experiment", ["tiny", "--measure-tasks=1", *world])  # another measurement
    assert measured == [1, 2, 2, 2]
    assert read_json(_run() / "approximations.json")["planned"] == [2]


def test_a_run_without_a_record_cannot_be_measured(
    world: list[str], bench: Bench, tmp_path: Path
) -> None:
    config = parse([*world[:6], "--out", str(tmp_path / "run")])
    with pytest.raises(DafuseError, match=r"no record of task 1.*finished run with --record"):
        measurement.measure(config, MeasureOptions(), Progress(), bench)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def bench(world: list[str]) -> Bench:
    return prepare(parse(world[:6]))


@pytest.mark.parametrize(
    ("count", "wanted", "tasks"),
    [
        (20, 4, [1, 7, 13, 19]),
        (20, 1, [19]),
        (3, 9, [1, 2]),
        (2, 4, [1]),
        (1, 4, [0]),
    ],
)
def test_tasks_are_spread_evenly(count: int, wanted: int, tasks: list[int]) -> None:
    assert spread_tasks(count, wanted) == tasks


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["alpha", "--measure-tasks", "2"], "alpha measures nothing beside its runs"),
        (["approximations", "--measure-probes", "0"], "--measure-probes must be at least 1"),
    ],
)
def test_wrong_requests_are_told(arguments: list[str], told: str) -> None:
    with pytest.raises(DafuseError, match=told):
        start("experiment", [*arguments, "--dry-run"])

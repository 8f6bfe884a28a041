"""Runs and lessons that two processes share, on the CPU: the same numbers, and kills."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.engine.config import RunConfig
from dafuse.engine.devices import launch
from dafuse.engine.ranks import Ranks
from dafuse.engine.shared_steps import WholeBatchDropout, leaves
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from helpers.processes import dafuse
from helpers.shared_runs import command, environment, run_all, runs, use_small_network
from helpers.small_datasets import save_arrays, small_dataset

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16}
ADAPTER: dict[str, Any] = {**QUICK, "adapter_rank": 4}
ALIGNED: dict[str, Any] = {**ADAPTER, "align_epochs": 2, "align_samples": 16}
METHODS: dict[str, dict[str, Any]] = {
    "daf": {"name": "daf", **ALIGNED},
    "daf by batches": {"name": "daf", **ALIGNED, "fisher": "per_batch"},
    "l2p": {"name": "l2p", **QUICK},
    "coda": {"name": "coda", **QUICK, "orthogonality": 0.1},
    "mos": {"name": "mos", **ALIGNED, "orth": 1.0},
    "tuna": {"name": "tuna", **ALIGNED, "orth": 1.0},
    "finetune": {"name": "finetune", **QUICK},
    "foster": {"name": "foster", **QUICK, "first_epochs": 1, "exemplars_per_class": 2},
    "lift": {"name": "lift"},
    "simplecil": {"name": "simplecil"},
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: {"method": method} for name, method in METHODS.items()},
    "online": {"method": {"name": "lift"}, "stream": "online", "observed_batch": 30},
}
EXACT = ("lift", "simplecil", "online")


def python(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process group of its own; nothing of the group may be left."""
    with started(*arguments, **extra) as process:
        return ended(process)


@contextmanager
def started(*arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if _left(process.pid, 0.0):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ended(process: subprocess.Popen[str], timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Wait until the process has ended; nothing of its group may be left."""
    out, err = process.communicate(timeout=timeout)
    assert not _left(process.pid, 20.0), "a process was left behind"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _left(group: int, seconds: float) -> bool:
    """Tell whether a process of the group is still there after so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(0.1)


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def state(folder: Path) -> dict[str, Tensor]:
    (file,) = (folder / "checkpoints").glob("*.safetensors")
    return load_file(file)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The runs of one process, and those of two."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    run_all(one, 1, CONFIGS)
    done = python(*runs(two, 2, CONFIGS))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return one, two


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_learn_what_one_learns(both: tuple[Path, Path], name: str) -> None:
    one, two = (folder / name for folder in both)
    alone, shared = results(one), results(two)
    for part in ("correct", "total", "confusion", "others"):
        assert shared.get(part) == alone.get(part)
    for mine, theirs in zip(shared["tasks"], alone["tasks"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5, abs=1e-6)
        assert mine["images"] == theirs["images"]
        assert (mine["devices"], theirs["devices"]) == (2, 1)
    mine, theirs = state(two), state(one)
    assert mine.keys() == theirs.keys()
    for key, tensor in theirs.items():
        largest = float(tensor.double().abs().nan_to_num().max()) if tensor.numel() else 0.0
        bound = (1e-9 if name in EXACT else 1e-4) * largest
        assert torch.allclose(mine[key], tensor, rtol=0, atol=bound, equal_nan=True), key


def test_diagnoses_count_the_images_of_all_processes(both: tuple[Path, Path]) -> None:
    one, two = (results(folder / "l2p")["tasks"] for folder in both)
    shares = [[task["diagnosis"]["prompt_shares"] for task in tasks] for tasks in (one, two)]
    assert np.allclose(shares[0], shares[1], atol=1e-6)


def test_provenance_tells_the_devices_and_the_configuration_does_not(
    both: tuple[Path, Path],
) -> None:
    one, two = (folder / "daf" for folder in both)
    told = [json.loads((out / "provenance.json").read_text())["device"] for out in (one, two)]
    assert told == ["cpu (1 threads)", "2 x cpu (1 threads)"]
    configs = [json.loads((out / "config.json").read_text()) for out in (one, two)]
    assert configs[0]["hash"] == configs[1]["hash"]
    assert not {"devices", "nodes"} & configs[1]["config"].keys()
    assert RunConfig(devices=4, nodes=2).hash() == RunConfig().hash()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("images") / "images.npz"
    save_arrays(small_dataset([9] * 6), file)
    return file


def words(images: Path, out: Path, *extra: str) -> Sequence[str]:
    method = ["--method.epochs", "2", "--method.batch_size", "4", "--method.align_epochs", "2"]
    given = ["--data", str(images), "--out", str(out), "--device", "cpu", "--increment", "2"]
    return ["run", *given, *method, *extra]


def test_killed_in_any_process_all_end_and_the_same_command_goes_on(
    images: Path, tmp_path: Path
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    assert dafuse(*words(images, alone), before=use_small_network).status == 0

    two = words(images, out, "--devices", "2")
    killed = python(*command(*two), KILL_RANK="1", KILL_EPOCH="4")
    assert killed.returncode != 0
    assert killed.stderr.count("task 1/3") == 1, "one process speaks"
    if killed.returncode > 0:  # else Fabric was quicker to end it than it to say so
        assert "another of the 2 processes of this run ended" in killed.stderr
        assert "the same command goes on from the last finished task" in killed.stderr
    assert "Traceback" not in killed.stderr
    assert len(results(out)["tasks"]) == 1

    killed = python(*command(*two), KILL_RANK="0", KILL_EPOCH="4")
    assert killed.returncode == -signal.SIGKILL
    assert killed.stderr.count("going on with task 2 of 3") == 1
    assert len(results(out)["tasks"]) == 2

    stopped = python(*command(*two), KILL_RANK="0", KILL_EPOCH="1", KILL_BY="SIGTERM")
    assert stopped.returncode == 128 + signal.SIGTERM
    assert said_last(stopped) == "dafuse: stopped; the same command goes on where it stopped"

    by_torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python(*by_torchrun, *command(*words(images, out)))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("going on with task 3 of 3") == 1
    assert done.stdout.count("report:") == 1
    assert results(out)["correct"] == results(alone)["correct"]
    assert [task["devices"] for task in results(out)["tasks"]] == [2, 2, 2]

    again = dafuse(*words(images, out), before=use_small_network)
    assert again.status == 0
    assert "finished; nothing to compute" in again.err


def said_last(process: subprocess.CompletedProcess[str]) -> str:
    return process.stderr.splitlines()[-1]


def test_the_first_of_several_machines_can_be_stopped_while_it_waits(
    images: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with started(*command(*words(images, tmp_path / "out", "--nodes", "2")), **first) as process:
        until_listening(process, port)
        process.send_signal(signal.SIGINT)
        stopped = ended(process, 20.0)
    assert stopped.returncode == 128 + signal.SIGINT
    assert "waiting for the 2 processes of all machines" in stopped.stderr
    assert said_last(stopped) == "dafuse: stopped; the same command goes on where it stopped"


def until_listening(process: subprocess.Popen[str], port: int) -> None:
    """Wait until torch awaits the other machines: Python's main thread used to wait in there."""
    while process.poll() is None:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.1)
    raise AssertionError(process.communicate()[1])


def test_a_further_machine_can_be_stopped_while_it_waits_for_the_first(
    images: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120.0)
        port = str(silent.getsockname()[1])
        second = {"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        asked = command(*words(images, tmp_path / "out", "--nodes", "2"))
        with started(*asked, **second) as process, silent.accept()[0]:
            process.send_signal(signal.SIGTERM)
            stopped = ended(process, 20.0)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr == ""


def test_two_processes_learn_a_lesson_as_one_does(
    images: Path, tmp_path: Path, small_network: None
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    lesson = [images, "--tune", "--epochs", "2"]
    taught = dafuse("learn", alone, *lesson, before=use_small_network)
    assert taught.status == 0, taught.err
    done = python(*command("learn", shared, *lesson, "--devices", 2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("learned 6 new classes") == 1
    asked = list(small_dataset([9] * 6).test.items)
    mine, theirs = (Classifier.open(model).probabilities(asked) for model in (shared, alone))
    assert mine == pytest.approx(theirs, abs=1e-5)
    assert theirs.max(1).mean() > 0.5, "it learned something"


def test_devices_are_refused_where_nothing_is_trained(images: Path, tmp_path: Path) -> None:
    refused = dafuse("learn", tmp_path / "model", images, "--devices", 2)
    assert refused.is_refusal
    assert "trains nothing" in refused.err
    assert "--cluster" in refused.err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_number_of_devices_that_is_none_is_refused(
    images: Path, tmp_path: Path, wrong: int
) -> None:
    for said in (
        dafuse(*words(images, tmp_path / "run", "--devices", str(wrong))),
        dafuse("learn", tmp_path / "model", images, "--tune", "--devices", wrong),
    ):
        assert said.is_refusal
        assert "devices must be at least 1" in said.err


def test_more_devices_than_there_are_are_refused() -> None:
    there = os.cpu_count() or 1
    with pytest.raises(DafuseError, match=f"is more than the {there} processors"):
        launch("cpu", "fp32", False, there + 1)


def ranks_of(count: int) -> list[Ranks]:
    """Return the ranks of a run that is not there, for what each computes alone."""
    fabric: Fabric = launch("cpu", "fp32", False)
    found = [Ranks(fabric) for _ in range(count)]
    for rank, one in enumerate(found):
        one.rank, one.count = rank, count
    return found


@pytest.mark.parametrize(("count", "images", "size"), [(2, 9, 4), (3, 2, 4), (4, 21, 5)])
def test_every_image_is_one_processes_own(count: int, images: int, size: int) -> None:
    ranks = ranks_of(count)
    batch = np.arange(images)
    parts = [batch[one.share(images)] for one in ranks]
    assert np.array_equal(np.concatenate(parts), batch)
    assert [len(part) for part in parts] == sorted(map(len, parts), reverse=True)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    rows = [one.rows(images, size) for one in ranks]
    assert sorted(np.concatenate(rows).tolist()) == batch.tolist()
    starts = [row for own in rows for row in own.tolist() if row % size == 0]
    assert len(starts) == -(-images // size), "batches stay whole"


def test_dropout_of_a_part_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(1)
    whole = torch.randn(5, 7, 3)
    state = torch.random.get_rng_state()
    expected, following = F.dropout(whole, 0.4), torch.rand(3)
    for own in (slice(0, 3), slice(3, 5), slice(5, 5)):
        torch.random.set_rng_state(state)
        with WholeBatchDropout(own, 5):
            assert torch.equal(F.dropout(whole[own], 0.4, training=True), expected[own])
            assert F.dropout(whole[own], 0.4, training=False) is not None
        assert torch.equal(torch.rand(3), following), "the next step draws the same"


def test_leaves_are_the_parameters_that_were_used() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    assert leaves((used * 2).sum() + used.detach().sum()) == {used}
    assert leaves((used * unused).sum()) == {used, unused}

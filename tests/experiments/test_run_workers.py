"""Runs that processes make at the same time: killed ones are made once more, the others go on."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dafuse.cli import start
from dafuse.cluster import joined
from dafuse.commands.run import parse
from dafuse.engine.worker_place import ClusterShare, WorkerPlace
from dafuse.errors import DafuseError
from dafuse.experiments.making import make_together
from dafuse.experiments.plan import PlannedRun, plan_grid
from dafuse.experiments.run_workers import LocalProcesses, RayTasks, require_shared
from dafuse.experiments.steps_table import StepsTable
from dafuse.sealed import read_sealed
from faults import command
from helpers.deadly_runs import deadly
from helpers.processes import clean_environment
from helpers.ray_clusters import ray_cluster
from helpers.small_runs import enter_small_world

DATA = ["--data", "small.npz", "--increment", "2", "--device", "cpu"]
SLOW = ["--method.epochs", "500", "--method.batch_size", "8"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    enter_small_world(tmp_path, monkeypatch, [3] * 4)
    return tmp_path


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_cluster([1, 1]) as started:
        yield started.address


@pytest.fixture(scope="module")
def ray(address: str) -> Iterator[Any]:
    """One connection for all, so that the workers stay and import torch once."""
    with joined(address) as connected:
        yield connected


def seeds(*numbers: int, out: str = "runs") -> list[PlannedRun]:
    words = ["--method", "simplecil", *DATA]
    return plan_grid([replace(parse(words), seed=number) for number in numbers], Path(out))


def counted(run: PlannedRun) -> dict[str, Any]:
    """Return a run's results without its times."""
    results = read_sealed(run.folder / "results.json", "")
    for task in results["tasks"]:
        del task["seconds"]
    return results


def test_a_killed_process_is_one_failed_run_that_is_made_once_more(world: Path) -> None:
    once, twice, well = seeds(1, 2, 3)
    steps = [deadly(once, 1, world / "one"), deadly(twice, 9, world / "many"), well]
    text = StringIO()
    with LocalProcesses(2) as workers:
        failed = make_together(steps, workers, StepsTable(steps, Console(file=text, width=200)))
    assert len(failed) == 1
    assert failed[0].startswith("simplecil, seed 2 (its process was killed")
    assert once.finished()
    assert well.finished()
    assert len(list((world / "many").iterdir())) == 2
    said = text.getvalue()
    assert said.count("simplecil, seed 1 failed") == 1
    assert "once more" in said
    assert "simplecil, seed 3: finished, task 2 of 2, " in said
    (other,) = seeds(1, out="others")
    with LocalProcesses(1) as workers:
        assert make_together([other], workers, StepsTable([other], Console(file=text))) == []
    assert counted(other) == counted(once)  # that was killed and went on


def test_ray_makes_a_killed_run_once_more(world: Path, ray: Any) -> None:
    once, twice, well = seeds(1, 2, 3)
    steps = [deadly(once, 1, world / "one"), deadly(twice, 9, world / "many"), well]
    with RayTasks(ray, ClusterShare()) as workers:
        require_shared(ray, world)
        failed = make_together(steps, workers, StepsTable(steps, Console(file=StringIO())))
    assert len(failed) == 1
    assert failed[0].startswith("simplecil, seed 2 (its process was killed")
    assert once.finished()
    assert well.finished()
    assert len(list((world / "many").iterdir())) == 2


def test_an_experiment_is_made_on_a_cluster(
    world: Path, address: str, ray: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--method", "daf", *DATA, "--method.epochs=1", "--method.align_epochs=1"]
    start(words[0], [*words[1:], "--method.alpha", "1.0,2.0", "--cluster", address])
    told = capsys.readouterr()
    assert "daf-alpha-2.0, seed 1993: finished, task 2 of 2" in told.err
    assert "alpha=2.0" in told.out
    assert len(list(Path("runs").glob("daf-*/record"))) == 1  # the other one replays it


def test_a_cluster_that_does_not_share_the_folder_is_refused(
    world: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_shared(ray, world)
    monkeypatch.setattr("dafuse.experiments.run_workers.sees", lambda *_: False)
    with pytest.raises(DafuseError, match="is not one folder for all machines of the cluster"):
        require_shared(ray, world)
    assert not list(world.glob(".seen*"))
    with pytest.raises(DafuseError, match="no machine of the cluster has a GPU for it"):
        ClusterShare(gpu=0.5).resources(ray)
    with pytest.raises(DafuseError, match="--cpus 64: no machine of the cluster has more"):
        ClusterShare(cpus=64).resources(ray)
    assert ClusterShare().resources(ray) == {"num_cpus": 1, "num_gpus": 0.0}


def test_threads_and_memory_are_shared_out(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert LocalProcesses(3).place.threads == 2
    assert LocalProcesses(16).place.threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert LocalProcesses(2).place.threads == 1
    monkeypatch.setattr("dafuse.data.batches.free_bytes", lambda _: 8 * 2**30)
    config = parse(DATA)
    assert WorkerPlace(2, 0.5).fitted(config) == replace(config, workers=2, memory_gb=2.0)
    own = replace(config, workers=7, memory_gb=3.0)
    assert WorkerPlace(2, 0.5).fitted(own) == own


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_command(world: Path, number: signal.Signals) -> None:
    words = ["run", "--method", "daf", *DATA, *SLOW, "--seeds", "2", "--parallel", "2"]
    running = command.start(*words, folder=world, environment=clean_environment())
    try:
        until(lambda: len(list(world.glob("runs/*/events.jsonl"))) == 2)
        workers = children_of(running.pid)
        assert len(workers) >= 2
        if number == signal.SIGINT:
            running.signal(number)  # as a terminal does, to all of them
        else:
            os.kill(running.pid, number)
        ended = running.wait(60)
        until(lambda: not any(is_alive(pid) for pid in workers))
        if number == signal.SIGINT:
            assert ended.status == 130
            assert ended.err.endswith(
                "dafuse: stopped; the same command goes on where it stopped\n"
            )
            assert not ended.has_traceback
    finally:
        running.signal(signal.SIGKILL)  # if it has not ended
    shutil.rmtree(world / "runs")


def until(done: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    own = [int(word) for word in text.split()]
    return [*own, *(inner for child in own for inner in children_of(child))]


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False

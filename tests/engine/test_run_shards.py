"""Runs whose images a cluster shares out give what one process gives, also with a killed node."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dafuse.cli import start
from dafuse.cluster import joined
from dafuse.commands.run import parse
from dafuse.engine.provenance import provenance
from dafuse.engine.run import prepare, resolved, run
from dafuse.engine.run_shards import SharedImages
from dafuse.engine.trainer import Trainer
from dafuse.engine.worker_place import ClusterShare
from dafuse.errors import DafuseError
from dafuse.progress import Bar, Progress
from dafuse.sealed import read_sealed
from helpers.ray_clusters import LOOPBACK, ray_cluster
from helpers.small_runs import enter_small_world

BATCH = 8  # images: a task has 4 batches, whole and in order
ABLE = {  # methods that need features only, with options that make them quick
    "simplecil": [],
    "lift": ["--method.features=last"],
    "layup": ["--method.blocks=1"],
    "klda": ["--method.width=50"],
    "anacp": ["--method.width=50"],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster([1, 1]) as started:
        yield started


@pytest.fixture(scope="module")
def ray(cluster: Any) -> Iterator[Any]:
    """One connection for all, so that the workers stay and import torch once."""
    with joined(cluster.address) as connected:
        yield connected


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_small_world(tmp_path, monkeypatch, [16] * 4, test_count=8)
    made = Trainer.__init__

    def with_small_batches(trainer: Trainer, *given: Any, **named: Any) -> None:
        made(trainer, *given, **named)
        trainer.forward.at_once = BATCH  # workers take it from here

    monkeypatch.setattr(Trainer, "__init__", with_small_batches)


def words(name: str, *more: str) -> list[str]:
    shared = ["--data", "small.npz", "--increment", "2", "--device", "cpu"]
    return ["--method", name, *ABLE.get(name, []), *shared, *more]


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    (tensors,) = (folder / "checkpoints").glob("*.safetensors")
    results = read_sealed(folder / "results.json", "")
    for task in results["tasks"]:
        del task["seconds"]
    return load_file(tensors), results


@pytest.mark.usefixtures("world")
def test_all_methods_that_need_features_only_give_the_bits_of_one_process(ray: Any) -> None:
    made = {}
    for name in ABLE:
        config = resolved(parse(words(name, "--out", f"shared-{name}")))
        made[name] = run(config, shards=SharedImages(ray, config, ClusterShare()))
    bench = prepare(parse(words("simplecil")))
    for name, shared in made.items():
        alone = run(parse(words(name, "--out", f"alone-{name}")), bench=bench)
        (state, results), (same_state, same_results) = outcome(alone), outcome(shared)
        assert results == same_results, name
        assert state.keys() == same_state.keys()
        for key in state:
            assert torch.equal(state[key], same_state[key]), (name, key)


class Killing(Progress):
    """Kills a node of the cluster when the first shard of a task's features is there."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node, self.killed = cluster, node, threading.Event()

    def bar(self, label: str, total: int) -> Any:
        whole, bar = self, super().bar(label, total)

        class AtFirst(Bar):
            def advance(self, steps: int = 1, note: str = "") -> None:
                super().advance(steps, note)
                if not whole.killed.is_set():
                    whole.killed.set()
                    whole.cluster.remove_node(whole.node, allow_graceful=False)

        class Entered:
            def __enter__(self) -> Bar:
                bar.__enter__()
                return AtFirst(total)

            def __exit__(self, *error: Any) -> None:
                bar.__exit__(*error)

        return Entered() if label == "statistics" else bar


@pytest.mark.usefixtures("world")
def test_the_shards_of_a_killed_node_are_done_again(cluster: Any, ray: Any) -> None:
    alone = run(parse(words("simplecil", "--out", "alone")))
    node = cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK)
    config = resolved(parse(words("simplecil", "--out", "shared")))
    progress = Killing(cluster, node)
    until(lambda: ray.cluster_resources().get("CPU") == 3)
    shared = run(config, progress, shards=SharedImages(ray, config, ClusterShare()))
    assert progress.killed.is_set()
    assert outcome(shared)[1] == outcome(alone)[1]


def until(done: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.usefixtures("world")
def test_the_command_makes_the_same_folder_and_reuses_it(
    cluster: Any, ray: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    start("run", [*words("simplecil"), "--cluster", cluster.address])
    (folder,) = Path("runs").iterdir()
    assert folder == resolved(parse(words("simplecil"))).folder()
    assert (folder / "report.html").is_file()
    capsys.readouterr()
    start("run", words("simplecil"))  # without the cluster
    assert "finished; nothing to compute" in capsys.readouterr().err


@pytest.mark.usefixtures("world")
def test_other_data_on_a_worker_is_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolved(parse(words("simplecil", "--out", "other")))
    monkeypatch.setattr(
        "dafuse.engine.run_shards.provenance",
        lambda *of: provenance(*of) | {"weights": {"sha256": "others"}},
    )
    refused = pytest.raises(DafuseError, match="a machine of the cluster has another weights than")
    with refused:
        run(config, shards=SharedImages(ray, config, ClusterShare()))
    assert not (Path("other") / "results.json").exists()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--method", "daf"], "use --devices for it, or a method that needs features only: simple"),
        (["--method=lift", "--method.tune=first"], "lift trains with these options"),
        (
            ["--method", "lift", "--stream", "online"],
            "observed batch by batch: leave --cluster out",
        ),
        (["--method", "lift", "--cluster=x"], "takes nothing, auto or HOST:PORT"),
    ],
)
@pytest.mark.usefixtures("world")
def test_what_cannot_be_shared_out_is_refused_at_once(asked: list[str], told: str) -> None:
    with pytest.raises(DafuseError, match=told):
        start("run", ["--cluster", *asked])
    assert not Path("runs").exists()

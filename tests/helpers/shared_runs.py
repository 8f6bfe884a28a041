"""Work of small networks that processes share, as a program that Fabric or torchrun starts.

    runs FOLDER PROCESSES NAME=JSON...   # a run of each configuration, in FOLDER/NAME
    command WORD...                      # a dafuse command on the small network

With $KILL_RANK and $KILL_EPOCH, that process kills itself where that epoch of training begins, by
the signal that $KILL_BY names, or by SIGKILL.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dafuse.backbones.network import Network
from dafuse.cli import main as dafuse_main
from dafuse.data.batches import Loader
from dafuse.engine import run as engine_run
from dafuse.engine import trainer
from dafuse.engine.config import RunConfig
from dafuse.engine.devices import launch
from dafuse.engine.ranks import Ranks
from dafuse.engine.run import Bench, run
from dafuse.processes import rank_here
from dafuse.product import classifier
from dafuse.taught.torch_extractor import TorchExtractor
from helpers.processes import clean_environment
from helpers.small_datasets import small_dataset
from helpers.small_networks import small_vit

COUNTS = [40, 41, 41, 40]  # training images: a last batch of 16 has one image, for two processes
Configs = Mapping[str, Mapping[str, Any]]


def run_all(folder: Path, processes: int, configs: Configs) -> None:
    """Run each configuration on the same images, in two tasks."""
    fabric = launch("cpu", "fp32", False, processes)
    network = Ranks(fabric).begin(small_vit)
    # more images than pass at once, and not the same number of batches for each process
    dataset = small_dataset(COUNTS, test_count=40)
    bench = Bench(fabric, network, Loader(dataset, network.preprocessing, fabric.device))
    for name, config in configs.items():
        out = str(folder / name)
        run(RunConfig(**config, increment=2, order="natural", out=out), bench=bench)


def runs(folder: Path, processes: int, configs: Configs) -> list[str]:
    """Return the arguments of Python that `run_all` in processes of their own."""
    asked = [f"{name}={json.dumps(config)}" for name, config in configs.items()]
    return ["-m", "helpers.shared_runs", "runs", str(folder), str(processes), *asked]


def command(*words: object) -> list[str]:
    """Return the arguments of Python for a dafuse command on the small network."""
    return ["-m", "helpers.shared_runs", "command", *map(str, words)]


def environment(**extra: str) -> dict[str, str]:
    return clean_environment(PYTHONPATH=str(Path(__file__).parents[1]), **extra)


def use_small_network() -> None:
    """Have commands compute on the small network, whichever is asked for."""

    def small(*_: object, **__: object) -> Network:
        return small_vit()

    def opened(*_: object, devices: int = 1, **__: object) -> TorchExtractor:
        vit = small_vit()
        vit.sha256 = "0" * 64
        return TorchExtractor(vit, "cpu", devices=devices)

    engine_run.build_backbone = small  # type: ignore[attr-defined]
    engine_run.with_weights = lambda network, *_: network  # type: ignore[attr-defined]
    classifier.open_extractor = opened  # type: ignore[attr-defined]


def die_in(epoch: int) -> None:
    """Have this process kill itself where that epoch of training begins."""
    set_rates, begun = trainer._set_rates, 0

    def counted(*given: Any) -> None:
        nonlocal begun
        begun += 1
        if begun == epoch:
            os.kill(os.getpid(), signal.Signals[os.environ.get("KILL_BY", "SIGKILL")])
        set_rates(*given)

    trainer._set_rates = counted  # type: ignore[assignment]


def main(arguments: Sequence[str]) -> None:
    what, *rest = arguments
    torch.set_num_threads(1)
    rank = "1" if rank_here() else "0"
    if os.environ.get("KILL_RANK") == rank:
        die_in(int(os.environ["KILL_EPOCH"]))
    if what == "command":
        use_small_network()
        dafuse_main(list(rest))
        return
    folder, processes, *asked = rest
    named = [one.partition("=") for one in asked]
    run_all(Path(folder), int(processes), {name: json.loads(one) for name, _, one in named})


if __name__ == "__main__":
    main(sys.argv[1:])

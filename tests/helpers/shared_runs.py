"""Benchmark runs of small networks by one process or two, as a program that Fabric starts again.

python -m helpers.shared_runs FOLDER PROCESSES METHOD=JSON...   # FOLDER/METHOD is a run's folder
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dafuse.data.batches import Loader
from dafuse.engine.config import RunConfig
from dafuse.engine.devices import launch
from dafuse.engine.ranks import Ranks
from dafuse.engine.run import Bench, run
from helpers.small_datasets import small_dataset
from helpers.small_networks import small_vit

COUNTS = [40, 41, 41, 40]  # training images: a last batch of 16 has one image, for two processes


def run_all(folder: Path, processes: int, methods: Mapping[str, Mapping[str, Any]]) -> None:
    """Run each method with its options on two tasks."""
    fabric = launch("cpu", "fp32", False, processes)
    network = Ranks(fabric).begin(small_vit)
    # more images than pass at once, and not the same number of batches for each process
    dataset = small_dataset(COUNTS, test_count=40)
    bench = Bench(fabric, network, Loader(dataset, network.preprocessing, fabric.device))
    for name, options in methods.items():
        method = {"name": name.partition("/")[0], **options}
        out = str(folder / name.replace("/", "-"))
        run(RunConfig(method=method, increment=2, order="natural", out=out), bench=bench)


def command(folder: Path, processes: int, methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the command that runs these methods."""
    asked = [f"{name}={json.dumps(options)}" for name, options in methods.items()]
    return [sys.executable, "-m", "helpers.shared_runs", str(folder), str(processes), *asked]


def main(arguments: Sequence[str]) -> None:
    folder, processes, *asked = arguments
    torch.set_num_threads(1)
    named = [one.partition("=") for one in asked]
    methods = {name: json.loads(options) for name, _, options in named}
    run_all(Path(folder), int(processes), methods)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Time the embedded network beside version 1: in turns, in one process.

    python scripts/compact/speed.py photographs/

A line for each way: milliseconds an image of both (wall clock and processor time, medians of the
rounds), and the ratio of version 2 to version 1, taken within each round. "network" is the forward
pass alone; "file" is all of the way from a file, which is decoded and resized first.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.backbones.load import load_backbone
from dafuse.backbones.registry import COMPACT, COMPACT_V1
from dafuse.taught.torch_extractor import TorchExtractor

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
IMAGES = 64  # in each measurement
OPEN: dict[str, Callable[[str, int], Extractor]] = {
    "onnxruntime": Extractor.embedded,
    "torch": lambda tag, threads: TorchExtractor(load_backbone(tag), "cpu", threads),
}


def passes(extractor: Extractor, files: list[Path], batch: int, what: str) -> Callable[[], None]:
    """A function that computes features of all files, or of as many squares of noise."""
    size = (batch, 3, extractor.pixels, extractor.pixels)
    noise_B3SS = np.random.default_rng(0).uniform(0, 255, size).astype(np.float32)

    def run() -> None:
        for start in range(0, IMAGES, batch):
            if what == "file":
                extractor.features(files[start : start + batch])
            else:
                extractor.encode(noise_B3SS)

    return run


def time_in_turns(ways: list[Callable[[], None]], rounds: int) -> dict[str, object]:
    """Milliseconds an image of both, by each clock, and the ratio of the second to the first."""
    taken_RWC = np.zeros((rounds, len(ways), len(CLOCKS)))
    for number in range(-1, rounds):  # the first is not counted
        for way, run in enumerate(ways):
            before = [clock() for clock in CLOCKS.values()]
            run()
            after = [clock() for clock in CLOCKS.values()]
            if number >= 0:
                taken_RWC[number, way] = np.subtract(after, before)
    found: dict[str, object] = {}
    for clock, name in enumerate(CLOCKS):
        times_RW = 1000 * taken_RWC[:, :, clock] / IMAGES
        ratios_R = times_RW[:, 1] / times_RW[:, 0]
        found[f"{name}_ms"] = [round(median(times), 2) for times in times_RW.T]
        found[f"{name}_ratio"] = round(median(ratios_R), 3)
        found[f"{name}_ratio_range"] = [round(r, 3) for r in (ratios_R.min(), ratios_R.max())]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("photographs", type=Path, help="folder of JPEG files")
    parser.add_argument("--by", choices=OPEN, nargs="+", default=list(OPEN))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    files = sorted(args.photographs.rglob("*.jpg"))[:IMAGES]
    for engine in args.by:
        extractors = [OPEN[engine](tag, args.threads) for tag in (COMPACT_V1, COMPACT)]
        for batch in (1, 32):
            for what in ("network", "file"):
                ways = [passes(extractor, files, batch, what) for extractor in extractors]
                found = time_in_turns(ways, args.rounds)
                print(json.dumps({"by": engine, "batch": batch, "what": what} | found), flush=True)


if __name__ == "__main__":
    main()

"""Milliseconds per image of each named network on the CPU, by onnxruntime and by torch.

Weights are random, except those in the package: speed does not depend on them.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dafuse.backbones.depths import Depths
from dafuse.backbones.extractor import Extractor, made_up
from dafuse.backbones.graph import graph
from dafuse.backbones.registry import CHOICES, COMPACT, COMPACT_V1, is_packaged
from dafuse.benchmarks.rounds import BenchRow, Goal, compared
from dafuse.benchmarks.setting import Parts, Setting, network
from dafuse.taught.torch_extractor import TorchExtractor

DEPTHS: Depths = "moments"  # the depths that lift reads
ALL = (COMPACT_V1, *CHOICES.values())
QUICK = (COMPACT_V1, COMPACT)
GOAL = Goal("ratio", most=1.3)  # of the embedded network over its first version


def parts(setting: Setting) -> Parts:
    return {
        "onnxruntime": partial(_measure, setting, _by_onnxruntime),
        "torch": partial(_measure, setting, _by_torch),
    }


def _measure(setting: Setting, open_extractor: Callable[[str, Path], Extractor]) -> list[BenchRow]:
    tags = (setting.backbone, COMPACT_V1) if setting.backbone else QUICK if setting.quick else ALL
    with tempfile.TemporaryDirectory() as folder:
        extractors = {
            tag: open_extractor(tag, Path(folder) / f"{n}.onnx") for n, tag in enumerate(tags)
        }
        measures = {tag: partial(_milliseconds, extractor) for tag, extractor in extractors.items()}
        measured = setting.alternate(measures, "backbones", warm_up=tags)
    before = "version 1 of the embedded network", measured[COMPACT_V1]
    return [
        compared(
            f"{tag}, {extractors[tag].pixels} px",
            "ms/image",
            measured[tag],
            before if tag != COMPACT_V1 else None,
            "share",
            GOAL if tag == COMPACT and not setting.quick else None,
        )
        for tag in tags
    ]


def _by_onnxruntime(tag: str, file: Path) -> Extractor:
    if is_packaged(tag):
        return Extractor.embedded(tag, device="cpu")
    file.write_bytes(graph(network(tag)))
    return Extractor(file, device="cpu")


def _by_torch(tag: str, file: Path) -> Extractor:
    return TorchExtractor(network(tag), "cpu")


def _milliseconds(extractor: Extractor) -> float:
    """Return the milliseconds per made-up image."""
    squares_B3SS = np.ascontiguousarray(made_up(extractor.pixels))
    start = time.perf_counter()
    extractor.encode(squares_B3SS, DEPTHS)
    return 1000 * (time.perf_counter() - start) / len(squares_B3SS)

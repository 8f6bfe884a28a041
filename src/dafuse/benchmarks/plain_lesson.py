"""The yardstick of a lesson: features by onnxruntime and the mean of each class, in a script.

python -m dafuse.benchmarks.plain_lesson FOLDER MEANS.npy

It decodes and crops images like a lesson, with as many threads, and does nothing else.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from PIL import Image

from dafuse.backbones.card import INPUT, read_backbone_card
from dafuse.backbones.extractor import embedded_graph

AT_ONCE = 32
DEPTHS = "moments"  # what `lift` reads by default
GRAPH = embedded_graph()


def main(folder: str, out: str) -> None:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    options = SessionOptions()
    options.intra_op_num_threads = threads or 1
    session = InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])
    looks = read_backbone_card(session.get_modelmeta().custom_metadata_map, GRAPH).preprocessing

    def read(file: Path) -> np.ndarray:
        return looks.centre_square(np.array(Image.open(file).convert("RGB")))

    files = sorted(Path(folder).glob("*/*.jpg"))
    feats = []
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(files), AT_ONCE):
            squares = np.stack(list(pool.map(read, files[start : start + AT_ONCE])))
            feats += session.run([DEPTHS], {INPUT: squares})
    feats_NF = np.concatenate(feats)
    names = np.array([file.parent.name for file in files])
    np.save(out, np.stack([feats_NF[names == name].mean(0) for name in np.unique(names)]))


if __name__ == "__main__":
    main(*sys.argv[1:])

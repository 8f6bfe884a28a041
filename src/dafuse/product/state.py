"""A method's state as objects of the model's folder, and back.

The adapters are one object, the classifier's rows another, and the statistics of each class one of
its own: what a step leaves as it was keeps its name, so a version costs what is new in it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dafuse.product.folder import ModelFolder
from dafuse.product.version import Version

State = dict[str, Tensor]  # as `methods.contract.Method.state` has it
STATISTICS = "statistics/class."  # then the name of what is kept of each class


class Objects(NamedTuple):
    """Names of the objects of a state."""

    adapter: str
    classifier: str
    classes: list[str]


def put_state(folder: ModelFolder, state: Mapping[str, Tensor]) -> Objects:
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}

    def group(prefix: str) -> dict[str, np.ndarray]:
        return {name: array for name, array in arrays.items() if name.startswith(prefix)}

    rows, statistics = group("classifier/"), group(STATISTICS)
    classes = [
        folder.put({name.removeprefix(STATISTICS): kept[row] for name, kept in statistics.items()})
        for row in range(len(arrays["classifier/rows"]))
    ]
    return Objects(folder.put(group("modules/")), folder.put(rows), classes)


def read_state(folder: ModelFolder, version: Version) -> State:
    arrays = {**folder.arrays(version.adapter), **folder.arrays(version.classifier)}
    classes = [folder.arrays(record.statistics) for record in version.classes]
    for name in classes[0]:
        arrays[STATISTICS + name] = np.stack([one[name] for one in classes])
    # copies, for what a file gives may not be written to
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

"""A guess of how long a run takes, before any of its kind is finished: its images times one pass.

It is rough: it counts the forward passes of training, statistics and evaluation, at the speed of
batches that suit the device. A method that trains in small batches takes up to three times as long.
Everything else is not counted: alignment, ridge regression, compiling. With few images, that is
most of a run.
"""

import torch

from dafuse.backbones.load import build_backbone
from dafuse.data.registry import open_dataset
from dafuse.engine.config import RunConfig
from dafuse.engine.devices import launch, seconds
from dafuse.engine.streams import make_stream
from dafuse.experiments.declared import MeasureOptions
from dafuse.methods.registry import find_method

BATCH = {"cpu": 16, "cuda": 256, "mps": 64}  # batch size of the timed forward pass
STEP = {"cpu": 2, "cuda": 4, "mps": 4}  # training an image takes as long as so many forward passes
SECOND_DERIVATIVE = 6  # a product with the Hessian takes as long as so many forward passes
TENSORS = 4  # of an adapter


class Guess:
    """Seconds of steps that share data, backbone and device."""

    def __init__(self, base: RunConfig) -> None:
        self._dataset = open_dataset(**base.data)
        self._device, self._seconds = _time_a_pass(base)

    def of_run(self, config: RunConfig) -> float:
        method, options = find_method(config.method["name"]), config.method
        passes = seen = 0
        for task in make_stream(config, self._dataset):
            seen += len(task.test)
            passes += len(task.train) + method.passes(task.number, options) * seen
            if not config.replay:
                epochs = method.epochs_of(task.number, options)
                passes += STEP[self._device] * epochs * len(task.train)
        return passes * self._seconds

    def of_features(self) -> float:
        """Return the seconds of one forward pass over all images."""
        return (len(self._dataset.train) + len(self._dataset.test)) * self._seconds

    def of_measurement(self, options: MeasureOptions) -> float:
        products = TENSORS * (options.probes + options.coordinates)
        images = options.tasks * options.images
        return images * products * SECOND_DERIVATIVE * self._seconds


def _time_a_pass(config: RunConfig) -> tuple[str, float]:
    """Return the kind of device, and the seconds of a forward pass per image: the best of three."""
    fabric = launch(config.device, config.precision, deterministic=False)
    kind = fabric.device.type
    network = build_backbone(config.backbone).to(fabric.device)
    count, size = BATCH[kind], network.preprocessing.size
    images_B3SS = torch.zeros(count, 3, size, size, device=fabric.device)
    with torch.inference_mode(), fabric.autocast():
        network(images_B3SS)  # the first pass is not counted
        took = [seconds(lambda: network(images_B3SS), fabric.device) for _ in range(3)]
    return kind, min(took) / count

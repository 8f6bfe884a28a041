"""The stream that a run asks for, and how a method observes one without tasks."""

from typing import Any

from dafuse.data.dataset import Dataset
from dafuse.data.stream import Stream, Task, class_order, require_order, task_sizes
from dafuse.data.taskless import blurry, online, repeated, taskless_stream
from dafuse.engine.config import NUMBERS, STREAM_OPTIONS, STREAMS, RunConfig
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.methods.contract import Method
from dafuse.methods.options import require_valid
from dafuse.methods.registry import require_observes


def require_possible(config: RunConfig) -> None:
    """Refuse numbers and streams that are impossible, or that the method cannot learn."""
    if config.stream not in STREAMS:
        raise DafuseError(f"no stream is called {config.stream!r}; there are {', '.join(STREAMS)}")
    usual = RunConfig()
    for name in STREAM_OPTIONS:
        if name not in STREAMS[config.stream] and getattr(config, name) != getattr(usual, name):
            kinds = ", ".join(kind for kind, options in STREAMS.items() if name in options)
            raise DafuseError(f"{name} is not for --stream {config.stream}, but for {kinds}")
    require_valid(RunConfig, {name: getattr(config, name) for name in NUMBERS})
    if config.stream != "tasks":
        require_observes(config.method["name"], config.stream, config.method)


def make_stream(config: RunConfig, dataset: Dataset) -> Stream:
    """Return the tasks or, in a stream without them, the segments between evaluations."""
    count, labels = len(dataset.classes), dataset.train.labels
    order = class_order(count, config.order, config.seed)
    if config.stream == "tasks":
        return Stream(dataset, order, task_sizes(count, config.increment))
    require_order(order, count)
    points, seed = config.points, config.seed
    if config.stream == "online":
        sizes = task_sizes(count, config.increment)
        return taskless_stream(dataset, online(labels, order, sizes, points, seed))
    points = points or len(task_sizes(count, config.increment))
    if config.stream == "blurry":
        shares = config.disjoint_share, config.blurry_share
        return taskless_stream(dataset, blurry(labels, order, points, *shares, seed))
    return taskless_stream(dataset, repeated(labels, order, points, config.visits, seed))


def learn_or_observe(
    method: Method, trainer: Trainer, task: Task, config: RunConfig
) -> dict[str, Any]:
    """Learn the task; in a stream without tasks, observe its images in order, each once."""
    if config.stream == "tasks":
        return method.learn(task)
    images, size = task.train, config.observed_batch
    with trainer.phase("observe", len(images), len(images)) as bar:
        for batch, labels in bar.over(trainer.batches(images, size)):
            method.observe(batch, labels)
    return {}

"""A run's configuration: what the command line, a recipe and the run's folder all hold."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from dafuse.backbones.registry import COMPACT
from dafuse.engine.results import CONFIG
from dafuse.errors import DafuseError
from dafuse.methods.options import Range, Seed, Share
from dafuse.shapes import require_shape

# options that do not change a result: a run may continue with other values
NOT_IN_HASH = ("out", "workers", "memory_gb", "record", "replay", "devices", "nodes")
# each kind of stream, and the options that it alone has
STREAMS: dict[str, tuple[str, ...]] = {
    "tasks": (),
    "online": ("points", "observed_batch"),
    "blurry": ("points", "observed_batch", "disjoint_share", "blurry_share"),
    "repeated": ("points", "observed_batch", "visits"),
}
# options that methods got when runs had been published, and their defaults
DAF_LATER = {"head": "aligned", "head_width": 5000}
LATER: dict[str, dict[str, Any]] = dict.fromkeys(("daf", "daf-paper", "daf-retrieval"), DAF_LATER)
STREAM_OPTIONS = tuple(dict.fromkeys(option for own in STREAMS.values() for option in own))
NUMBERS = (*STREAM_OPTIONS, "seed", "workers", "memory_gb", "devices", "nodes")  # with ranges


@dataclass(kw_only=True)
class RunConfig:
    """One method on one stream.

    Args:
        method: the method's name and its options
        data: the data set's name and its options
        backbone: the frozen network: embedded, small, base, large, or an exact timm tag
        weights: a local .safetensors file with the backbone's weights
        weights_sha256: what that file's SHA-256 must be
        normalize: normalisation of the pixels: that of the weights, or another
        increment: classes in a task, or a list with the size of each task
        order: class order: the seed's permutation, natural, or a list of class numbers
        stream: how images come: in tasks; or in batches that are seen once, with classes in the
            order of the tasks (online), some of them spread over the stream (blurry, as in
            Si-Blurry), or all coming back with new images (repeated)
        points: how often a stream without tasks is tested; null means as often as there would be
            tasks
        observed_batch: images in a batch of a stream without tasks
        disjoint_share: share of a blurry stream's classes whose images come in one segment
        blurry_share: share of the other classes' images that is spread over all segments
        visits: in how many segments of a repeated stream each class comes
        seed: decides the class order, the init, the augmentation, everything
        precision: number format of the network's arithmetic
        device: where it runs; auto takes a GPU if there is one
        devices: how many of them on each machine share the work, a process each; on a CPU so many
            processes
        nodes: machines that share the work, each with so many devices
        compiled: compile the network (seconds of delay, then faster); null means on a GPU only
        deterministic: bit-identical repeats on a GPU too, slower (on a CPU they always are)
        workers: threads that decode, processes that stream
        memory_gb: memory for decoded images; what does not fit is read again each time; null means
            half of what is free
        record: keep the results of each task's training, for runs with replay
        replay: folder of a run with record that trained the same way; its training is not repeated,
            and only what comes after training may differ
        out: the run's folder; null means one named after the configuration, under runs/
    """

    method: dict[str, Any] = field(default_factory=lambda: {"name": "daf"})
    data: dict[str, Any] = field(default_factory=lambda: {"name": "glyphs"})
    backbone: str = COMPACT
    weights: str | None = None
    weights_sha256: str | None = None
    normalize: Literal["weights", "none", "half", "imagenet"] = "weights"
    increment: int | list[int] = 10
    order: Literal["seed", "natural"] | list[int] = "seed"
    stream: Literal["tasks", "online", "blurry", "repeated"] = "tasks"
    points: Annotated[int | None, Range(1, 10**6)] = None
    observed_batch: Annotated[int, Range(1, 10**6)] = 10
    disjoint_share: Share = 0.5
    blurry_share: Share = 0.1
    visits: Annotated[int, Range(2, 10**6)] = 3
    seed: Seed = 1993
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Annotated[int, Range(1, 4096)] = 1
    nodes: Annotated[int, Range(1, 4096)] = 1
    compiled: bool | None = None
    deterministic: bool = False
    workers: Annotated[int | None, Range(0, 4096)] = None
    memory_gb: Annotated[float | None, Range(0, 2**20)] = None
    record: bool = False
    replay: str | None = None
    out: str | None = None

    def asked(self) -> dict[str, Any]:
        """Return what the run's folder holds: everything but options of other kinds of stream.

        A run is told as it was before there were other streams, or later options of its method,
        where it has none of them, and keeps its hash.
        """
        other = {"stream", *STREAM_OPTIONS} if self.stream == "tasks" else set(STREAM_OPTIONS)
        other -= set(STREAMS[self.stream])
        other |= {"devices", "nodes"}  # where it runs, which may change; provenance tells it
        later = LATER.get(self.method["name"], {})
        method = {k: v for k, v in self.method.items() if k not in later or v != later[k]}
        asked = {**asdict(self), "method": method}
        return {key: value for key, value in asked.items() if key not in other}

    def hash(self) -> str:
        """Return the SHA-256 of everything that may change the result."""
        relevant = {k: v for k, v in self.asked().items() if k not in NOT_IN_HASH}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()

    def folder(self) -> Path:
        return Path("runs") / self.name() if self.out is None else Path(self.out)

    def name(self) -> str:
        """Return a folder that no other configuration has."""
        data = Path(self.data["name"]).name
        return f"{self.method['name']}-{data}-seed{self.seed}-{self.hash()[:8]}"


def saved_config(content: Any, folder: object) -> RunConfig:
    """Return the configuration that a run's folder holds."""
    try:
        config = RunConfig(**content)
        require_shape(asdict(config), CONFIG)
    except (TypeError, ValueError) as error:
        raise DafuseError(
            f"{folder}/config.json is not of a run of this version of dafuse: {error}"
        ) from None
    return config


def split_name(named: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a method or of a data set, and its options."""
    return named["name"], {key: value for key, value in named.items() if key != "name"}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return key, old and new value wherever two flat configurations differ."""
    keys = sorted(old.keys() | new.keys())
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join nested keys by dots, as the command line spells them."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat

"""A run whose images are shared out: features and answers, computed wherever a cluster has workers.

For methods that need features only. Each worker opens the same network and the same data, and
computes whole batches with the bounds that one process would give them, so the features are the
same bits. For answers, the method's state travels to the workers. Ray schedules the shards, and
does those of a lost worker again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from dafuse.backbones.depths import Depths
from dafuse.cluster import RETRIES, why_of_ray
from dafuse.data.dataset import ImageSet, Part
from dafuse.engine.config import RunConfig, split_name
from dafuse.engine.evaluate import PredictedClasses, answered
from dafuse.engine.provenance import provenance
from dafuse.engine.run import prepare
from dafuse.engine.trainer import Trainer
from dafuse.engine.worker_place import ClusterShare, WorkerPlace
from dafuse.errors import DafuseError
from dafuse.methods.contract import Method
from dafuse.methods.registry import METHODS, find_method, with_defaults
from dafuse.progress import Bar

SHARDS_EACH = 4  # for each worker: one that is slow does fewer
MOST_BATCHES = 16  # in a shard, which a lost worker's successor does again
COMPARED = ("weights", "data_fingerprint", "images", "reading")
PACKAGES = ("dafuse", "torch", "timm")  # whose versions must be the same everywhere


class ShardImages(NamedTuple):
    """Images by what travels: their part of the data, index and labels."""

    part: Part
    index_N: np.ndarray
    labels_N: np.ndarray


@dataclass(frozen=True)
class SharedRun:
    """A run as every worker must open it."""

    config: RunConfig
    place: WorkerPlace
    at_once: int  # images in a batch
    inputs: dict[str, Any]

    def opens(self) -> "SharedRun":
        """Return the part that decides what is opened: runs of other methods share it."""
        return replace(self, config=replace(self.config, method={}, out=None))


class SharedImages:
    """Features and answers of images, computed on a cluster."""

    def __init__(self, ray: Any, config: RunConfig, share: ClusterShare) -> None:
        require_features_only(config)
        self._ray, self._config = ray, config
        given = share.resources(ray)
        self._place = WorkerPlace(share.cpus, share.memory(ray))
        self._workers = max(1, share.tasks(ray))
        task = ray.remote(max_retries=RETRIES, **given)
        self._features, self._answers = task(features_of), task(answers_of)
        self._setting: Any = None  # in the cluster's memory

    def features(
        self, trainer: Trainer, images: ImageSet, depths: Depths, bar: Bar
    ) -> tuple[Tensor, Tensor]:
        """Return features [N, ...] and labels [N], as `Trainer.features`."""
        setting = self._given(trainer)
        asked = [
            (len(rows.index_N), self._features.remote(setting, rows, depths))
            for _, rows in self._cut(trainer, images)
        ]
        feats_NF = torch.cat([torch.tensor(part) for part in self._collected(asked, bar)])
        labels_N = torch.from_numpy(images.labels)
        return feats_NF.to(trainer.device), labels_N.to(trainer.device)

    def answered(
        self, method: Method, trainer: Trainer, images: ImageSet, known_N: Tensor, bar: Bar
    ) -> dict[str, PredictedClasses]:
        """Return the answers of each way to predict, as `engine.evaluate.answered`."""
        setting = self._given(trainer)
        tensors = {key: value.detach().cpu().contiguous() for key, value in method.state().items()}
        state = self._ray.put(save(tensors))
        asked = [
            (
                len(rows.index_N),
                self._answers.remote(setting, rows, state, state.hex(), known_N[at].numpy()),
            )
            for at, rows in self._cut(trainer, images)
        ]
        parts = self._collected(asked, bar)
        ways = parts[0] if parts else {}
        return {
            way: PredictedClasses(
                *(np.concatenate(each) for each in zip(*(part[way] for part in parts), strict=True))
            )
            for way in ways
        }

    def _given(self, trainer: Trainer) -> Any:
        """Return the setting, sent once."""
        if self._setting is None:
            inputs = _inputs(trainer)
            how = self._config, self._place, trainer.forward.at_once, inputs
            self._setting = self._ray.put(SharedRun(*how))
        return self._setting

    def _cut(self, trainer: Trainer, images: ImageSet) -> Iterator[tuple[slice, ShardImages]]:
        """Yield shards of whole batches."""
        size = trainer.forward.at_once
        batches = -(-len(images) // size)
        each = min(MOST_BATCHES, max(1, batches // (SHARDS_EACH * self._workers))) * size
        is_test = images.items is trainer.loader.dataset.test.items
        part: Part = "test" if is_test else "train"
        for start in range(0, len(images), each):
            at = slice(start, start + each)
            yield at, ShardImages(part, images.index[at], images.labels[at])

    def _collected(self, asked: list[tuple[int, Any]], bar: Bar) -> list[Any]:
        """Return the results of all shards in order, as they come."""
        found: dict[Any, Any] = {}
        sizes = {ref: size for size, ref in asked}
        waiting = list(sizes)
        while waiting:
            done, waiting = self._ray.wait(waiting)
            for ref in done:
                try:
                    found[ref] = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    raise DafuseError(
                        f"a worker of the cluster failed: {why_of_ray(self._ray, error)}"
                    ) from None
                bar.advance(sizes[ref], note=f"shard {len(found)}/{len(asked)}")
        return [found[ref] for _, ref in asked]


def require_features_only(config: RunConfig) -> None:
    """Refuse what cannot be shared out: a method that trains, a stream without tasks."""
    name, options = split_name(config.method)
    if find_method(name).needs_of(options) != "features":
        able = [
            other
            for other, method in METHODS.items()
            if method.needs_of(with_defaults(other, {})) == "features"
        ]
        raise DafuseError(
            f"{name} trains with these options, and --cluster shares out features only: use "
            f"--devices for it, or a method that needs features only: {', '.join(able)}"
        )
    if config.devices * config.nodes > 1:
        raise DafuseError("either --cluster, or --devices and --nodes: a run takes one of both")
    if config.stream != "tasks":
        raise DafuseError(
            f"the stream {config.stream!r} is observed batch by batch: leave --cluster out"
        )


_opened: tuple[SharedRun, Trainer] | None = None  # in a worker: what its last shard needed
_method: tuple[str, Method] | None = None


def features_of(setting: SharedRun, rows: ShardImages, depths: Depths) -> np.ndarray:
    """Return the features of a shard, in a worker."""
    trainer = _trainer(setting)
    feats_NF, _ = trainer.features(_images(trainer, rows), None, depths=depths)
    return feats_NF.cpu().numpy()


def answers_of(
    setting: SharedRun, rows: ShardImages, state: bytes, token: str, known_N: np.ndarray
) -> dict[str, PredictedClasses]:
    """Return the answers to a shard, in a worker."""
    global _method
    trainer = _trainer(setting)
    if _method is None or _method[0] != token:
        name, options = split_name(setting.config.method)
        method = find_method(name)(trainer=trainer, **options)
        method.load_state({key: value.to(trainer.device) for key, value in load(state).items()})
        _method = token, method
    images, known = _images(trainer, rows), torch.tensor(known_N)
    return answered(_method[1], trainer, images, known, Bar(len(images)))


def _trainer(setting: SharedRun) -> Trainer:
    """Open network and data as the run did, once; refuse others than it has."""
    global _opened
    if _opened is None or _opened[0] != setting.opens():
        _opened = None  # its memory is free before other images are decoded
        setting.place.enter()
        torch.set_num_threads(setting.place.threads)
        config = setting.config
        bench = prepare(setting.place.fitted(config))
        trainer = Trainer(
            bench.network, bench.loader, bench.fabric, config.seed, compiled=config.compiled
        )
        trainer.forward.at_once = setting.at_once
        here = _inputs(trainer)
        for what, wanted in setting.inputs.items():
            if here[what] != wanted:
                raise DafuseError(
                    f"a machine of the cluster has another {what.replace('_', ' ')} than this one "
                    f"({here[what]}, here {wanted}): have the same everywhere"
                )
        _opened = setting.opens(), trainer
    return _opened[1]


def _inputs(trainer: Trainer) -> dict[str, Any]:
    """Return what must be the same in all processes."""
    found = provenance(trainer.network, trainer.loader, trainer.device)
    same = {key: found[key] for key in COMPARED}
    same["weights"] = found["weights"]["sha256"]
    return same | {f"version of {name}": found["versions"].get(name) for name in PACKAGES}


def _images(trainer: Trainer, rows: ShardImages) -> ImageSet:
    data = trainer.loader.dataset
    items = data.train.items if rows.part == "train" else data.test.items
    return ImageSet(items, rows.labels_N, rows.index_N)

"""A lesson's shards read by a Ray cluster: a task for each, wherever there are workers.

Ray schedules the tasks, ships what they need and give, and does those of a lost worker again. The
process that asked for the lesson takes each result once, in the order of the shards. A worker opens
the network once. No torch here, nor Ray before it is asked for.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dafuse import __version__
from dafuse.backbones.backbone import in_words
from dafuse.backbones.card import files_beside
from dafuse.backbones.extractor import Extractor
from dafuse.cluster import RETRIES, joined, require_there, why_of_ray
from dafuse.data.dataset import Dataset, Item
from dafuse.data.remote import ConnectionLost
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from dafuse.product.lesson import Learner, Spread, in_turn
from dafuse.product.objects import read_shared
from dafuse.product.reading import Reader, ReadShard, Shard, reader_of
from dafuse.product.seen import Hashes, MetSoFar, Seen
from dafuse.product.shards import Planned, ReadShards, are_several
from dafuse.product.version import Version
from dafuse.progress import Bar, Progress
from dafuse.taught.contract import Arrays, InShards
from dafuse.taught.open_extractor import Wanted, open_extractor
from dafuse.taught.table import find_taught
from dafuse.wording import counted

AHEAD = 2  # shards for each processor of the cluster that are begun before they are needed


@dataclass(frozen=True)
class Errand:
    """All that a worker must know of a lesson, beside its shards."""

    made_by: str  # the version of dafuse
    version: Version  # of the model, without its history and with the names of its classes only
    names: list[str]  # of each label
    seen: Seen | None
    shared: Arrays
    network: dict[str, bytes]  # the files of an exported network, the graph first; else nothing
    device: str


@contextmanager
def cluster_for(
    dataset: Dataset,
    version: Version,
    extractor: Extractor,
    address: str | None,
    progress: Progress,
) -> Iterator[str | None]:
    """Join the cluster at this address for a lesson of several shards.

    Yields the address; None where none was given, or where there is nothing to spread.
    """
    if address is None:
        yield None
        return
    blank = find_taught(version.method, version.settings)(extractor, version.settings, version.seed)
    if not isinstance(blank, InShards):
        raise DafuseError(
            f"{in_words(version.method, version.settings)} reads the images of a lesson itself, so "
            "a cluster is of no use to it: leave out --cluster"
        )
    if are_several(len(dataset.train)):
        with joined(address, progress):
            yield address
        return
    require_there(address)
    images = counted(len(dataset.train), "image")
    progress.say(f"this lesson of {images} is one shard: it is computed here, without the cluster")
    yield None


@contextmanager
def spreading(
    dataset: Dataset,
    version: Version,
    extractor: Extractor,
    address: str | None,
    progress: Progress,
) -> Iterator[Spread]:
    """Join the cluster if it is of use, and leave it at the end; else read shards here."""
    with cluster_for(dataset, version, extractor, address, progress) as found:
        if found is None:
            yield in_turn
            return
        with joined(found) as ray:
            yield partial(on_cluster, ray)


def on_cluster(ray: Any, learner: Learner, planned: Planned) -> ReadShards:
    """Return a function that reads shards by the tasks of this Ray cluster."""
    errand = ray.put(_errand(learner, planned))
    gpus = {"num_gpus": 1} if learner.extractor.device == "cuda" else {}
    again = {"max_retries": RETRIES, "retry_exceptions": [ConnectionLost]}
    task = ray.remote(num_cpus=1, **again, **gpus)(_read)

    def begin(shard: Shard, met: Hashes | None = None) -> Any:
        return task.remote([errand], _sent(shard), met or Hashes())

    def read(shards: list[Shard], met: MetSoFar, bar: Bar) -> Iterator[ReadShard]:
        begun: dict[Any, Shard] = {}  # tasks that did not end yet
        tasks: list[Any] = []  # of each shard
        try:
            for place, shard in enumerate(shards):
                ahead = place + AHEAD * _processors(ray)
                for one in shards[len(tasks) : ahead]:
                    tasks.append(begin(one))
                    begun[tasks[-1]] = one
                while tasks[place] in begun:
                    for ended in ray.wait(list(begun))[0]:
                        images = len(begun.pop(ended).rows_N)
                        done = shard.of - len(shards) + len(tasks) - len(begun)
                        bar.advance(images, f"{done} of {shard.of} shards")
                part, tasks[place] = _result(ray, tasks[place]), None
                if len((before := met.among(part.hashes_N)).hashes_N):
                    part = _result(ray, begin(shard, before))
                yield _named_as_here(part, shard)
        finally:
            for one in begun:
                ray.cancel(one)

    return read


def _errand(learner: Learner, planned: Planned) -> Errand:
    version, file = learner.version, learner.extractor.file
    network = {}
    if file is not None:
        beside = [file.with_name(name) for name in files_beside(file)]
        network = {one.name: one.read_bytes() for one in (file, *beside)}
    return Errand(
        __version__,
        replace(version, history=[], seen=[], numbers={}),
        planned.names,
        learner.seen,
        read_shared(learner.folder, version),
        network,
        "cuda" if learner.extractor.device == "cuda" else "cpu",
    )


def _sent(shard: Shard) -> Shard:
    """Return the shard with paths that do not depend on the folder in which a process runs."""
    return replace(shard, images=[_anywhere(one) for one in shard.images])


def _anywhere(image: Item) -> Item:
    if isinstance(image, Path):
        return image.absolute()
    if isinstance(image, StoredImage) and not image.is_remote:
        return replace(image, place=str(Path(image.place).absolute()))
    return image


def _named_as_here(part: ReadShard, shard: Shard) -> ReadShard:
    """Return the result with the names of images as the person gave them."""
    if not part.skipped:
        return part
    files = [one for one in shard.images if not isinstance(one, np.ndarray)]
    given = {str(_anywhere(one)): str(one) for one in files}
    skipped = [one._replace(name=given.get(one.name, one.name)) for one in part.skipped]
    return replace(part, skipped=skipped)


def _processors(ray: Any) -> int:
    """Return how many tasks the cluster runs at once as it is now; a node may come or go."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _result(ray: Any, task: Any) -> ReadShard:
    try:
        found: ReadShard = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DafuseError):
            raise DafuseError(why_of_ray(ray, error)) from None
        raise
    except ray.exceptions.RayError as error:
        raise DafuseError(
            f"a shard was begun {RETRIES + 1} times, and each time its worker was lost "
            f"({why_of_ray(ray, error)}): see to the cluster and give the same command again, "
            "which goes on"
        ) from None
    return found


_opened: dict[str, Reader] = {}  # of this worker's process, by the errand's id: the latest alone


def _read(errands: list[Any], shard: Shard, met: Hashes) -> ReadShard:
    """Read a shard, in a worker."""
    import ray

    (errand,) = errands  # in a list, so that Ray does not fetch it for each shard
    if errand.hex() not in _opened:
        _opened.clear()
        _opened[errand.hex()] = _reader(ray.get(errand))
    _require_in_sight(shard)
    return _opened[errand.hex()].read(shard, met, lambda: None)


def _reader(errand: Errand) -> Reader:
    """Open the network and the method, and return what reads the lesson's shards."""
    if errand.made_by != __version__:
        raise DafuseError(
            f"the worker on {socket.gethostname()} has dafuse {__version__}, and the lesson was "
            f"begun by {errand.made_by}: install the same version on every machine"
        )
    version = errand.version
    taught = find_taught(version.method, version.settings)
    extractor = _network(errand, Wanted.by(taught, version.method, version.settings))
    extractor.preprocessing = version.backbone.preprocessing
    blank = partial(taught, extractor, version.settings, version.seed)
    return reader_of(version, extractor, blank, errand.shared, errand.names, errand.seen)


def _network(errand: Errand, wanted: Wanted) -> Extractor:
    backbone = errand.version.backbone
    with TemporaryDirectory() as folder:
        weights = None
        for name, content in errand.network.items():
            (Path(folder) / name).write_bytes(content)
            weights = weights or str(Path(folder) / name)
        return open_extractor(backbone.tag, weights, backbone.sha256, errand.device, 1, wanted)


def _require_in_sight(shard: Shard) -> None:
    """Refuse a shard of which this machine has no file: nobody would want all of it skipped."""
    files = [one for one in shard.images if isinstance(one, Path)]
    stored = [one for one in shard.images if isinstance(one, StoredImage) and not one.is_remote]
    files += {Path(one.place) for one in stored}
    if files and not any(file.exists() for file in files):
        raise DafuseError(
            f"the worker on {socket.gethostname()} does not see {files[0]}, nor any other image of "
            "its shard: put the images where every machine has them at the same path"
        )

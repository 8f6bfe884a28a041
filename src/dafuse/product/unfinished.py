"""The shards of a lesson that are done, kept until the lesson counts. No torch here.

    unfinished/lesson.json                     which lesson it is, and the key of its images' hashes
    unfinished/0-000012-<sha256>.safetensors   what shard 12 gave, as it was read the first time

They lie in the model's folder while a lesson in shards runs. If it is killed, the same command
finds them and reads the other shards only. Any step that changes the model deletes them.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from dafuse import __version__
from dafuse.data.dataset import Skipped
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from dafuse.files import make_folder, read_inside, write_atomically
from dafuse.product.folder import UNFINISHED, ModelFolder, as_bytes
from dafuse.product.reading import ReadShard, Shard
from dafuse.product.seen import MetSoFar
from dafuse.product.shards import Planned, ReadShards
from dafuse.product.version import Version
from dafuse.progress import Bar, Progress
from dafuse.sealed import read_sealed, write_sealed
from dafuse.wording import counted

NAME = re.compile("([0-9])-([0-9]{6,})-([0-9a-f]{64})[.]safetensors")
SUMS, TOLD = "sums/", "told"  # names of arrays: sums of the method, and a text as bytes


class Unfinished:
    """The shards of a lesson that were kept; none if it was not begun before."""

    def __init__(self, folder: ModelFolder, lesson: str, key: str) -> None:
        """Look for the lesson of this hash; if none was begun, begin it with this key."""
        self._top, self._folder = folder.path / UNFINISHED, folder.path
        header = self._top / "lesson.json"
        begun = None
        if header.is_file():
            try:
                begun = read_sealed(header, "", self._folder)
            except DafuseError:  # it is damaged: the lesson begins again
                begun = None
        if not isinstance(begun, dict) or begun.get("lesson") != lesson:
            folder.remove_unfinished()
            begun = {"lesson": lesson, "key": key}
            make_folder(self._top, self._folder)
            write_sealed(header, begun, self._folder)
        self.key: str = begun["key"]

    def kept_or_read(self, read: ReadShards, progress: Progress) -> ReadShards:
        """Return a function that reads the shards not kept, and keeps them.

        Shards of different calls are kept apart.
        """
        passes = count()

        def going_on(shards: list[Shard], met: MetSoFar, bar: Bar) -> Iterator[ReadShard]:
            number = next(passes)
            if len(shards) == 1:  # a lesson of few new images among many
                yield from read(shards, met, bar)
                return
            kept = self._whole(number, shards)
            if kept:
                done = f"{len(kept):,} of {counted(len(shards), 'shard')}"
                progress.say(f"going on with a lesson that was begun before: {done} are done")
            others = read([one for one in shards if one.number not in kept], met, bar)
            for shard in shards:
                if shard.number in kept:
                    bar.advance(len(shard.rows_N))
                    part = self._part(kept[shard.number])
                    yield replace(part, kept_in=str(self._top))
                else:
                    part = next(others)
                    self._put(number, shard.number, part)
                    yield part

        return going_on

    def _whole(self, number: int, shards: list[Shard]) -> dict[int, Path]:
        """Return the files of shards that are whole, by the shard's number."""
        wanted = {shard.number for shard in shards}
        found = {}
        for file in self._top.iterdir():
            match = NAME.fullmatch(file.name)
            if match and int(match[1]) == number and int(match[2]) in wanted:
                try:
                    self._part(file)
                except (DafuseError, OSError, SafetensorError, LookupError, ValueError, TypeError):
                    continue
                found[int(match[2])] = file
        return found

    def _part(self, file: Path) -> ReadShard:
        data = read_inside(file, self._folder)
        if hashlib.sha256(data).hexdigest() not in file.name:
            raise DafuseError(f"{file} is damaged")
        return from_arrays(load(data))

    def _put(self, number: int, shard: int, part: ReadShard) -> None:
        data = as_bytes(to_arrays(part))
        digest = hashlib.sha256(data).hexdigest()
        write_atomically(
            self._top / f"{number}-{shard:06d}-{digest}.safetensors", data, self._folder
        )


def to_arrays(part: ReadShard) -> dict[str, np.ndarray]:
    """Return the result of a shard as arrays."""
    told = {"skipped": part.skipped, "again": part.again, "twice": part.twice}
    arrays = {
        "rows": part.rows_N,
        "labels": part.labels_N,
        "pixels": part.pixels_N,
        "hashes": part.hashes_N,
        "tried": part.tried_N.astype(np.uint8),
        "classes": part.classes_K,
        "unreadable": np.array(part.unreadable, np.int64),
        TOLD: np.frombuffer(json.dumps(told).encode(), np.uint8),
        **{SUMS + name: array for name, array in part.sums.items()},
    }
    return arrays if part.feats_TF is None else {**arrays, "feats": part.feats_TF}


def from_arrays(arrays: dict[str, np.ndarray]) -> ReadShard:
    """Undo `to_arrays`; raise ValueError where numbers of images do not fit together."""
    count, feats_TF = len(arrays["rows"]), arrays.get("feats")
    sizes = {len(arrays[name]) for name in ("labels", "pixels", "tried")}
    tried = int((arrays["tried"] != 0).sum()) if feats_TF is not None else 0
    fits = sizes == {count} and len(arrays["hashes"]) in (0, count)
    if not fits or len([] if feats_TF is None else feats_TF) != tried:
        raise ValueError("not what a shard gives")
    if any(not np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("not all numbers")
    told = json.loads(arrays[TOLD].tobytes())
    return ReadShard(
        rows_N=arrays["rows"],
        labels_N=arrays["labels"],
        pixels_N=arrays["pixels"],
        hashes_N=arrays["hashes"],
        tried_N=arrays["tried"].astype(bool),
        feats_TF=feats_TF,
        sums={
            name.removeprefix(SUMS): one for name, one in arrays.items() if name.startswith(SUMS)
        },
        classes_K=arrays["classes"],
        skipped=[Skipped(*one) for one in told["skipped"]],
        unreadable=arrays["unreadable"].tolist(),
        again=told["again"],
        twice=told["twice"],
    )


def lesson_hash(planned: Planned, version: Version, digest: str, recognise: bool) -> str:
    """Return a hash of all that decides what the shards of a lesson give.

    Files count by path, size and time of change. ``digest`` is the hash of the version's file.
    """
    known = {
        "dafuse": __version__,
        "model": digest,
        "backbone": asdict(replace(version.backbone, file="")),
        "method": [version.method, version.settings, version.seed],
        "recognise": recognise,
        "names": planned.names,
        "shards": [planned.size, planned.tried],
    }
    found = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    found.update(np.ascontiguousarray(planned.labels_N).tobytes())
    for image in planned.images:
        if isinstance(image, np.ndarray):
            found.update(str(image.shape).encode() + np.ascontiguousarray(image).tobytes())
        else:
            found.update(f"{image}\n{_state_of(image)}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _state_of(path: Path | StoredImage) -> str:
    try:
        if isinstance(path, StoredImage):
            return path.state
        state = path.stat()
    except OSError:  # it is skipped when it is read
        return "gone"
    return f"{state.st_size} {state.st_mtime_ns}"

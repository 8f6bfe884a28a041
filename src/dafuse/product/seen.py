"""Images taught before, recognised by short hashes of their pixels. No torch here.

The decoded pixels of an image give a digest, and the digest with a random key of the model a hash
of 8 bytes. Hashes and the classes they were taught as are kept; digests are not. Large images are
reduced first (`data.images.reduced`), as the server reduces what it is sent, so that a photograph
is known again whichever way it comes.

Whoever has the model's folder and an image can tell whether that image was taught. One that was
saved again, cropped or made smaller by another program has another hash. So may a JPEG that another
version of Pillow or of its decoder reads, or reduces: it is then taught as a new image. No image
can be computed from a hash.

A merged model has the hashes of all its parts, each with the key they were made with: hashes of
different keys cannot be compared, but an image that comes again is looked for under every key.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from dafuse.data.images import reduced
from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import Version, new_key
from dafuse.taught.contract import Arrays

MOST_OBJECTS = 32  # with hashes; beyond, those of all lessons are written as one
HASH_BYTES = 8  # of a million images, a new one has the hash of another with a chance of 5e-14
WORDS = {  # what the ledger says of the arrays
    "hashes/": "a hash of each image's pixels, with the key that its name ends in: it tells "
    "whether an image that one has was taught, and nothing of how images look",
    "classes/": "the class each of these was taught as, by its number",
}


def digest_of(pixels_HW3: np.ndarray) -> bytes:
    """Return a digest of an image, reduced if large: equal for equal pixels and shapes alone."""
    pixels_HW3 = np.ascontiguousarray(reduced(pixels_HW3))
    digest = hashlib.blake2b(pixels_HW3.data, digest_size=32)
    digest.update(repr(pixels_HW3.shape).encode())
    return digest.digest()


@dataclass(frozen=True)
class Hashes:
    """Sorted hashes by one key, and the id of the class that each was taught as."""

    hashes_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    classes_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))

    def find(self, wanted: np.uint64) -> int | None:
        """Return the class of a hash; None for an unknown one."""
        place = int(np.searchsorted(self.hashes_N, wanted))
        if place == len(self.hashes_N) or self.hashes_N[place] != wanted:
            return None
        return int(self.classes_N[place])

    def joined(self, *others: "Hashes") -> "Hashes":
        """Join hashes; one that is in several keeps the class that the first of them has for it."""
        hashes_N = np.concatenate([self.hashes_N, *(one.hashes_N for one in others)])
        classes_N = np.concatenate([self.classes_N, *(one.classes_N for one in others)])
        hashes_N, first_N = np.unique(hashes_N, return_index=True)
        return Hashes(hashes_N, classes_N[first_N])

    def taken(self, chosen_N: np.ndarray) -> "Hashes":
        return Hashes(self.hashes_N[chosen_N], self.classes_N[chosen_N])


@dataclass(frozen=True)
class Seen:
    """All hashes of a model, by their keys."""

    key: str  # of those to come
    by_key: dict[str, Hashes]

    @classmethod
    def of(cls, folder: ModelFolder, version: Version) -> "Seen":
        """Read those of a version; a model of format 1, which has no key, gets one."""
        parts = [_load(folder, digest) for digest in version.seen]
        keys = list(dict.fromkeys(key for part in parts for key in part))
        by_key = {
            key: Hashes().joined(*(part[key] for part in parts if key in part)) for key in keys
        }
        return cls(version.key or new_key(), by_key)

    def hash_of(self, digest: bytes) -> np.uint64:
        """Return the hash by which an image that is taught now will be recognised."""
        return _hash(self.key, digest)

    def class_of(self, digest: bytes) -> int | None:
        """Return the id of the class that an image was taught as; None if it is not recognised."""
        for key, one in self.by_key.items():
            if (found := one.find(_hash(key, digest))) is not None:
                return found
        return None

    def shared_with(self, other: "Seen") -> int:
        """Count the images that are known to be in both."""
        return sum(
            len(np.intersect1d(self.by_key[key].hashes_N, one.hashes_N))
            for key, one in other.by_key.items()
            if key in self.by_key
        )

    def joined(self, other: "Seen") -> "Seen":
        by_key = dict(self.by_key)
        for key, one in other.by_key.items():
            by_key[key] = by_key.get(key, Hashes()).joined(one)
        return Seen(self.key, by_key)

    def renumbered(self, new_id: Callable[[int], int]) -> "Seen":
        """Return the same hashes with other ids of classes."""
        return Seen(
            self.key,
            {
                key: Hashes(
                    one.hashes_N, np.array([new_id(int(c)) for c in one.classes_N], np.int32)
                )
                for key, one in self.by_key.items()
            },
        )

    def put(self, folder: ModelFolder) -> list[str]:
        """Write them, if there are any; return the names of objects."""
        return _put(folder, self.by_key)


class MetSoFar:
    """Hashes of a lesson's images, shard after shard, each with the label of its class.

    Sorted runs are joined when they are of like size, so that many shards cost little.
    """

    def __init__(self) -> None:
        self.runs: list[Hashes] = []

    def add(self, hashes_N: np.ndarray, labels_N: np.ndarray) -> None:
        if not len(hashes_N):
            return
        self.runs.append(Hashes().joined(Hashes(hashes_N, labels_N.astype(np.int32))))
        while len(self.runs) > 1 and (
            len(self.runs[-2].hashes_N) < 2 * len(self.runs[-1].hashes_N)
        ):
            last = self.runs.pop()
            self.runs[-1] = self.runs[-1].joined(last)

    def find(self, wanted: np.uint64) -> int | None:
        """Return the label of an image; None for one that did not come yet."""
        found = (run.find(wanted) for run in self.runs)
        return next((label for label in found if label is not None), None)

    def among(self, hashes_N: np.ndarray) -> Hashes:
        """Return those of these hashes that came before, with their labels."""
        return Hashes().joined(*(run.taken(np.isin(run.hashes_N, hashes_N)) for run in self.runs))

    def all(self, id_of: np.ndarray) -> Hashes:
        """Return all of them, with ids of classes; ``id_of`` gives that of each label."""
        found = Hashes().joined(*self.runs)
        return Hashes(found.hashes_N, id_of[found.classes_N].astype(np.int32))


def with_lesson(folder: ModelFolder, version: Version, seen: Seen, lesson: Hashes) -> list[str]:
    """Write a lesson's hashes as one object; return the objects with all hashes.

    So versions share the objects of earlier lessons.
    """
    new = {seen.key: lesson}
    if len(version.seen) < MOST_OBJECTS:
        return [*version.seen, *_put(folder, new)]
    return seen.joined(Seen(seen.key, new)).put(folder)


def with_classes(folder: ModelFolder, version: Version, class_ids: Collection[int]) -> list[str]:
    """Write the hashes of these classes only; return the objects with them."""
    kept = np.array(sorted(class_ids), np.int32)
    objects = []
    for digest in version.seen:
        part = _load(folder, digest)
        left = {key: one.taken(np.isin(one.classes_N, kept)) for key, one in part.items()}
        objects += _put(folder, left)
    return objects


def _load(folder: ModelFolder, digest: str) -> dict[str, Hashes]:
    arrays = folder.arrays(digest)
    keys = [name.removeprefix("hashes/") for name in arrays if name.startswith("hashes/")]
    none = np.zeros((0, 0))
    found = {
        key: Hashes(arrays[f"hashes/{key}"], arrays.get(f"classes/{key}", none)) for key in keys
    }
    for one in found.values():
        types = one.hashes_N.dtype, one.classes_N.dtype
        alike = one.hashes_N.shape == one.classes_N.shape and one.hashes_N.ndim == 1
        if types != (np.uint64, np.int32) or not alike:
            raise DafuseError(f"{folder.object_file(digest)} does not hold hashes of images")
    return found


def _put(folder: ModelFolder, by_key: dict[str, Hashes]) -> list[str]:
    arrays: Arrays = {}
    for key, one in by_key.items():
        if len(one.hashes_N):
            arrays |= {f"hashes/{key}": one.hashes_N, f"classes/{key}": one.classes_N}
    return [folder.put(arrays)] if arrays else []


def _hash(key: str, digest: bytes) -> np.uint64:
    keyed = hashlib.blake2b(digest, digest_size=HASH_BYTES, key=bytes.fromhex(key))
    return np.uint64(int.from_bytes(keyed.digest(), "little"))
